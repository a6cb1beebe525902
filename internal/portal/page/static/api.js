// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Requests to the hub's own Kubernetes API at /k8s/local, with the rights of the user.

const group = "/k8s/local/apis/cluster.drover.dev/v1";

let token;

/** Sets the function that returns tokens. */
export function use(source) {
  token = source;
}

async function call(method, path, body) {
  const response = await fetch(path, {
    method, body: body && JSON.stringify(body), credentials: "omit",
    headers: { Authorization: "Bearer " + await token(), ...(body && { "Content-Type": "application/json" }) },
  });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401 && path.startsWith("/k8s/local/")) throw new Error("The hub’s API server does not accept your token: it has to trust the hub’s issuer (docs/operations/sign-in.md), or you need a token of the API server.");
  if (!response.ok) throw new Error(answer.message ?? `${response.status} ${response.statusText}`);
  return answer;
}

/** Returns the user with the names in bindings. */
export const whoAmI = async () => (await call("GET", "/v1/whoami")).status.userInfo;

/** Creates a Cluster. */
export const createCluster = (namespace, name) =>
  call("POST", `${group}/namespaces/${encodeURIComponent(namespace)}/clusters`, { apiVersion: "cluster.drover.dev/v1", kind: "Cluster", metadata: { namespace, name } });

/** Reads the Secret with the manifest of a Cluster's agent. */
export const registration = (namespace, name) => call("GET", `/k8s/local/api/v1/namespaces/${encodeURIComponent(namespace)}/secrets/${encodeURIComponent(name)}-registration`);

/** Reviews whether the user may do something on the hub, or in a member ("namespace/name"). */
export async function may(member, attributes) {
  const root = member ? "/k8s/clusters/" + member.split("/").map(encodeURIComponent).join("/") : "/k8s/local";
  return (await call("POST", root + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {
    apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview", spec: { resourceAttributes: attributes },
  })).status;
}
