// A browser starts no web worker for a page opened from the disk. The search runs in a hidden frame there instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      // An explicitly written document is not replaced when the frame finishes loading.
      this.scope.document.open()
      this.scope.document.write("<!doctype html><body>")
      this.scope.document.close()
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.loaded = new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        this.scope.document.body.append(script)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
