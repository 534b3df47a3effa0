// A button that copies a block of code, where the browser lets pages write to the clipboard.
if (navigator.clipboard) {
  for (const block of document.querySelectorAll("pre.code")) {
    const frame = document.createElement("div"), button = document.createElement("button");
    frame.className = "copied";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    block.replaceWith(frame);
    frame.append(block, button);
  }
}
