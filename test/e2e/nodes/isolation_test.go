// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// isolation sets up an isolated project with two namespaces, and another project in the same member.
const isolation = `apiVersion: cluster.drover.dev/v1
kind: Project
metadata: {name: bank, namespace: team-a}
spec:
  clusterName: prod
  namespaces: [vault, counter]
  networkIsolation: Project
---
apiVersion: cluster.drover.dev/v1
kind: Project
metadata: {name: street, namespace: team-a}
spec:
  clusterName: prod
  namespaces: [street]
`

// isolationPods are a server pod, a pod in another namespace of the same project, and a pod of the other project on
// each node.
const isolationPods = `apiVersion: v1
kind: Pod
metadata: {name: safe, namespace: vault, labels: {app: safe}}
spec: {nodeName: prod-1, terminationGracePeriodSeconds: 1, containers: [{name: tool, image: "lab.example.com/tool:1", args: [serve]}]}
---
apiVersion: v1
kind: Service
metadata: {name: safe, namespace: vault}
spec: {selector: {app: safe}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: clerk, namespace: counter}
spec: {nodeName: prod-2, terminationGracePeriodSeconds: 1, containers: [{name: tool, image: "lab.example.com/tool:1", args: [serve]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: near, namespace: street}
spec: {nodeName: prod-1, terminationGracePeriodSeconds: 1, containers: [{name: tool, image: "lab.example.com/tool:1", args: [serve]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: street}
spec: {nodeName: prod-2, terminationGracePeriodSeconds: 1, containers: [{name: tool, image: "lab.example.com/tool:1", args: [serve]}]}
`

func (o *operator) isolatesAProject(t *testing.T) {
	o.write(t, "isolation.yaml", isolation)
	o.types(t, "hub", "kubectl apply -f isolation.yaml && kubectl -n team-a wait --for=condition=Ready dproj/bank dproj/street --timeout=5m")
	o.write(t, "isolation-pods.yaml", isolationPods)
	o.types(t, "ada", "kubectl apply -f isolation-pods.yaml && kubectl -n vault wait --for=condition=Ready pod --all --timeout=5m && "+
		"kubectl -n counter wait --for=condition=Ready pod --all --timeout=5m && kubectl -n street wait --for=condition=Ready pod --all --timeout=5m")
	address := o.types(t, "ada", "kubectl -n vault get pod safe -o jsonpath='{.status.podIP}'")
	urls := []string{"http://" + address + ":8080", "http://safe.vault"}

	for _, url := range urls {
		o.tellsOf(t, "a pod of another project", url, refusedByPolicy, "street", "near", "far")
		o.tellsOf(t, "a pod of the same project", url, servedBy("safe"), "counter", "clerk")
	}
	outside := o.types(t, "ada", "kubectl -n street get pod far -o jsonpath='{.status.podIP}'")
	o.tellsOf(t, "what goes out of the project", "http://"+outside+":8080", servedBy("far"), "vault", "safe")
	o.types(t, "ada", "kubectl -n vault exec safe -- /tool get http://localhost:8080") // people are not pods of another project

	o.types(t, "prod", "kubectl label namespace street cluster.drover.dev/ingress=true")
	o.tellsOf(t, "a namespace that the administrator has labelled", urls[0], servedBy("safe"), "street", "near", "far")
	o.types(t, "prod", "kubectl label namespace street cluster.drover.dev/ingress-")
	o.tellsOf(t, "a namespace that has lost the label", urls[0], refusedByPolicy, "street", "near", "far")

	o.types(t, "hub", `kubectl -n team-a patch dproj bank --type=merge -p '{"spec":{"networkIsolation":"None"}}'`)
	for _, url := range urls {
		o.tellsOf(t, "a pod of another project, without isolation", url, servedBy("safe"), "street", "near", "far")
	}
	o.types(t, "ada", "kubectl delete -f isolation-pods.yaml --timeout=5m")
}

// tellsOf makes the pods of a namespace request a URL until the result is as expected.
func (o *operator) tellsOf(t *testing.T, what, url string, check func(out string, err error) error, namespace string, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		o.awaits(t, "ada", "kubectl -n "+namespace+" exec "+pod+" -- /tool get "+url, func(out string, err error) error {
			if wrong := check(out, err); wrong != nil {
				return fmt.Errorf("%s: %w", what, wrong)
			}
			return nil
		})
	}
}

func servedBy(pod string) func(string, error) error {
	return func(out string, err error) error {
		if err != nil || out != pod {
			return errors.New("want the response of " + pod)
		}
		return nil
	}
}

// refusedByPolicy is the error with which the lab's nodes reject connections that a NetworkPolicy does not allow.
func refusedByPolicy(out string, err error) error {
	if err == nil || !strings.Contains(out, "no route to host") {
		return errors.New("want a refusal by the NetworkPolicy")
	}
	return nil
}
