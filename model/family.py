"""What tensor shapes do not show: the same in every released Qwen3.5, 3.6 and 3.8 dense config.json.

A config beside the weights or in the safetensors header overrides each of them.
"""

ROPE_THETA = 1e7  # text_config.rope_parameters.rope_theta
PARTIAL_ROTARY_FACTOR = 0.25  # text_config.rope_parameters.partial_rotary_factor
MROPE_SECTIONS = (11, 11, 10)  # text_config.rope_parameters.mrope_section: time, height, width
RMS_EPS = 1e-6  # text_config.rms_norm_eps
LINEAR_KEY_HEAD_DIM = 128  # text_config.linear_key_head_dim
MAX_POSITIONS = 262144  # text_config.max_position_embeddings
# vision_config.num_heads by vision hidden size: 12 in the 0.8B model, 16 in all others.
VISION_HEADS = {768: 12}
VISION_HEADS_OTHERS = 16
VISION_ROPE_THETA = 1e4  # vision_config.rope_parameters.rope_theta
VISION_FRAMES = 2  # vision_config.temporal_patch_size

LINEAR, FULL = "linear_attention", "full_attention"  # text_config.layer_types
