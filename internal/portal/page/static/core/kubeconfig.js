// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Kubeconfigs for Clusters, as "kubectl drover kubeconfig" writes them. They contain no credentials: kubectl asks the
// plugin for tokens.

/** Returns a kubeconfig for Clusters. The first one is the current context. @param {string} hub @param {string[]} keys */
export function kubeconfig(hub, keys) {
  const host = new URL(hub).host;
  const text = JSON.stringify; // a string of JSON is one of YAML
  const context = (/** @type {string} */ key) => text(`${key}@${host}`);
  const user = text(`drover@${host}`);
  return `apiVersion: v1
kind: Config
current-context: ${context(keys[0])}
clusters:
${keys.map((key) => `- name: ${context(key)}
  cluster:
    server: ${text(`${hub}/k8s/clusters/${key}`)}`).join("\n")}
contexts:
${keys.map((key) => `- name: ${context(key)}
  context:
    cluster: ${context(key)}
    user: ${user}`).join("\n")}
users:
- name: ${user}
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: kubectl-drover
      args: [get-token, --hub, ${text(hub)}]
      interactiveMode: IfAvailable
      provideClusterInfo: true
      installHint: "kubectl-drover is kubectl's plugin for Drover: install it in a directory of the PATH."
`;
}

/** Lets the browser save a text as a file. @param {string} text @param {string} name */
export function download(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/yaml" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
