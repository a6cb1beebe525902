// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Kubeconfigs for Clusters, as "kubectl drover kubeconfig" writes them. They contain no credentials: kubectl asks the
// plugin for tokens.

/** Returns a kubeconfig for a Cluster. @param {string} hub @param {string} workspace @param {string} name */
export function kubeconfig(hub, workspace, name) {
  const host = new URL(hub).host;
  const text = JSON.stringify; // a string of JSON is one of YAML
  const context = text(`${workspace}/${name}@${host}`);
  const user = text(`drover@${host}`);
  return `apiVersion: v1
kind: Config
current-context: ${context}
clusters:
- name: ${context}
  cluster:
    server: ${text(`${hub}/k8s/clusters/${workspace}/${name}`)}
contexts:
- name: ${context}
  context:
    cluster: ${context}
    user: ${user}
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
