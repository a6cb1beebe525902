// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"strings"
	"testing"
)

// shop is an application with two pods, one of which may be unavailable.
const shop = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {topologyKey: kubernetes.io/hostname, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: web
        image: lab.example.com/tool:1
        args: [serve]
        env: [{name: PATH, value: /}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, emptyDir: {}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: shop}
spec:
  minAvailable: 1
  selector: {matchLabels: {app: web}}
`

// ada is a ServiceAccount of the hub and owns the member prod. Her kubeconfig leads to the member through the hub.
const ada = `apiVersion: v1
kind: ServiceAccount
metadata: {name: ada, namespace: team-a}
---
` + adaOwnsProd

const adaOwnsProd = `apiVersion: cluster.drover.dev/v1
kind: ClusterRoleTemplateBinding
metadata: {name: ada-owns-prod, namespace: team-a}
spec:
  clusterName: prod
  roleTemplateName: cluster-owner
  subject: {kind: User, name: "hub:system:serviceaccount:team-a:ada"}
`

func (o *operator) worksInPods(t *testing.T) {
	o.write(t, "ada.yaml", ada)
	o.types(t, "hub", "kubectl apply -f ada.yaml && kubectl -n team-a wait --for=condition=Ready crtb/ada-owns-prod --timeout=2m")
	o.logsIn(t, "ada", "prod", "create namespaces")
	o.write(t, "shop.yaml", shop)
	o.types(t, "ada", "kubectl apply -f shop.yaml && kubectl -n shop rollout status deployment/web --timeout=5m")

	pod := o.types(t, "ada", "kubectl -n shop get pods -o jsonpath='{.items[0].metadata.name}'")
	if got := o.types(t, "ada", "kubectl -n shop logs "+pod); got != pod+" serves" {
		t.Errorf("the log is %q", got)
	}
	if got := o.types(t, "ada", "kubectl -n shop exec "+pod+" -- /tool get http://localhost:8080"); got != pod {
		t.Errorf("exec printed %q, want %s", got, pod)
	}
	forward := "exec 3< <(kubectl -n shop port-forward " + pod + " 18080:8080); forward=$!; read -u 3 line; curl -sS http://127.0.0.1:18080; kill $forward"
	if got := o.types(t, "ada", forward); !strings.Contains(got, pod) {
		t.Errorf("at the forwarded port is %q, want %s", got, pod)
	}
	if got := o.types(t, "ada", "echo hello > greeting && kubectl -n shop cp greeting "+pod+":/data/greeting && kubectl -n shop cp "+pod+":/data/greeting back && cat back"); !strings.HasSuffix(got, "hello") {
		t.Errorf("the file that was copied there and back has %q", got)
	}
	debug := "kubectl -n shop debug " + pod + " --image=" + toolImage + " --container=look --attach=false -- /tool get http://localhost:8080 && " +
		"kubectl -n shop wait pod/" + pod + " --for=jsonpath='{.status.ephemeralContainerStatuses[0].state.terminated.exitCode}'=0 --timeout=2m && kubectl -n shop logs " + pod + " -c look"
	if got := o.types(t, "ada", debug); !strings.HasSuffix(got, pod) {
		t.Errorf("the container for debugging printed %q, want %s at the end", got, pod)
	}
	if got := o.types(t, "ada", "kubectl get --raw /api/v1/namespaces/shop/pods/"+pod+":8080/proxy/"); got != pod {
		t.Errorf("through the API server's proxy is %q, want %s", got, pod)
	}
}

// logsIn creates a kubeconfig for a ServiceAccount of team-a. The kubeconfig has the same name, and leads to a member
// through the hub. logsIn waits until the ServiceAccount has a right in the member, because API servers learn about new
// rights a moment after they are written.
func (o *operator) logsIn(t *testing.T, name, member, may string) {
	t.Helper()
	o.types(t, "hub", "curl -sS --insecure "+hubURL+"/v1/cacerts > hub-ca.crt")
	o.types(t, "hub", "kubectl -n team-a create token "+name+" --duration=24h > "+name+".token")
	o.types(t, name, strings.Join([]string{
		"kubectl config set-cluster drover --server=" + hubURL + "/k8s/clusters/team-a/" + member + " --certificate-authority=hub-ca.crt --embed-certs",
		"kubectl config set-credentials " + name + " --token=$(cat " + name + ".token)",
		"kubectl config set-context " + member + " --cluster=drover --user=" + name,
		"kubectl config use-context " + member,
	}, " && "))
	o.types(t, name, "until kubectl auth can-i "+may+"; do sleep 1; done")
}
