// The site's search runs in a worker. From the file system browsers start none, so its script runs in a hidden frame instead.
if (location.protocol === "file:") {
  const message = (data) => new MessageEvent("message", { data: structuredClone(data) });
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => {
        const answer = message(data);
        window.setTimeout(() => this.onmessage?.(answer));
      };
      const script = this.inner.document.createElement("script");
      script.src = url;
      this.started = new Promise((resolve) => { script.onload = resolve; });
      this.inner.document.body.append(script);
    }

    postMessage(data) {
      const request = message(data);
      this.started.then(() => this.inner.dispatchEvent(request));
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  };
}
