// Shows on a FastQwen node the text that it writes: while it is written, and after a run that was cached.
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";

const NODES = new Set(["FastQwenTextGenerate", "FastQwenPromptEnhance", "FastQwenImageCaption"]);
const WIDGET = "fastqwen_text";

/** The node of an execution id such as "12", or "12:3" for node 3 inside the subgraph node 12. */
function findNode(id) {
  let graph = app.rootGraph ?? app.graph;
  let node = null;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById?.(part) ?? graph?.getNodeById?.(Number(part)) ?? null;
    graph = node?.subgraph;
  }
  return node;
}

/** The read-only box of a node, made when there is first something to show. It is no part of saved workflows. */
function boxOf(node) {
  if (node.fastqwenBox) return node.fastqwenBox;
  const element = document.createElement("div");
  element.style.cssText = "display:flex; flex-direction:column; gap:2px; width:100%; height:100%; min-height:0;";
  const text = document.createElement("textarea");
  text.readOnly = true;
  text.className = "comfy-multiline-input";
  text.style.cssText = "flex:1 1 auto; min-height:0; resize:none;";
  const status = document.createElement("div");
  status.style.cssText = "flex:0 0 auto; font-size:10px; opacity:0.7; white-space:nowrap; overflow:hidden;";
  element.append(text, status);
  const widget = node.addDOMWidget(WIDGET, "fastqwen_text", element, {
    serialize: false,
    hideOnZoom: false,
    getValue: () => text.value,
    setValue: () => {},
    getMinHeight: () => 90,
  });
  widget.serialize = false;
  const size = node.computeSize?.();
  if (size) node.setSize?.([Math.max(node.size[0], size[0]), Math.max(node.size[1], size[1])]);
  node.fastqwenBox = { text, status, thinking: "", answer: "" };
  return node.fastqwenBox;
}

function write(node, box, status) {
  const atEnd = box.text.scrollHeight - box.text.scrollTop - box.text.clientHeight < 20;
  box.text.value = [box.thinking, box.answer].filter(Boolean).join("\n\n");
  box.status.textContent = status;
  box.status.title = status;
  if (atEnd) box.text.scrollTop = box.text.scrollHeight;
  node.setDirtyCanvas?.(true, false);
}

function onText({ detail }) {
  const node = findNode(detail.node);
  if (!node || !NODES.has(node.comfyClass ?? node.type)) return;
  const box = boxOf(node);
  if (detail.reset) box.thinking = box.answer = "";
  box.thinking += detail.thinking;
  box.answer += detail.answer;
  write(node, box, detail.status);
}

function onExecuted(node, output) {
  if (!output?.text) return;
  const box = boxOf(node);
  box.thinking = "";
  box.answer = output.text.join("\n\n");
  write(node, box, (output.report ?? []).join("\n").trim().split("\n").pop());
}

app.registerExtension({
  name: "fastqwen.text",
  setup() {
    api.addEventListener("fastqwen.text", onText);
  },
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (!NODES.has(nodeData.name)) return;
    const inherited = nodeType.prototype.onExecuted;
    nodeType.prototype.onExecuted = function (output) {
      inherited?.apply(this, arguments);
      onExecuted(this, output);
    };
  },
});
