"""ComfyUI's side of FastQwen: nodes, and the adapter to its folders, progress, interrupt and device."""
