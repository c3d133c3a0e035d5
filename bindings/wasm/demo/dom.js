// Small things that every part of the page uses.

export function element(name, properties = {}) {
  return Object.assign(document.createElement(name), properties);
}

export function megabytes(bytes) {
  const megabytes = bytes / 1e6;
  return `${megabytes.toFixed(megabytes < 10 ? 1 : 0)} MB`;
}

export function seconds(milliseconds) {
  return milliseconds < 1000 ? `${milliseconds.toFixed(0)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}
