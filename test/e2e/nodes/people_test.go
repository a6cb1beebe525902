// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"strings"
	"testing"
	"time"
)

// web is a project with a Secret, and the user bob is a member of it.
const web = `apiVersion: v1
kind: ServiceAccount
metadata: {name: bob, namespace: team-a}
---
apiVersion: cluster.drover.dev/v1
kind: Project
metadata: {name: web, namespace: team-a}
spec:
  clusterName: prod
  namespaces: [web]
  podSecurity: baseline
  resourceQuota: {pods: "2", limits.memory: 200Mi}
  namespaceDefaultResourceQuota: {pods: "2", limits.memory: 200Mi}
  containerDefaults: {requests: {memory: 16Mi}, limits: {memory: 96Mi}}
---
apiVersion: cluster.drover.dev/v1
kind: ProjectRoleTemplateBinding
metadata: {name: bob-in-web, namespace: team-a}
spec:
  projectName: web
  roleTemplateName: project-member
  subject: {kind: User, name: "hub:system:serviceaccount:team-a:bob"}
---
apiVersion: v1
kind: Secret
metadata: {name: motto, namespace: team-a, labels: {cluster.drover.dev/project: web}}
stringData: {motto: shared}
`

const workers = `apiVersion: apps/v1
kind: Deployment
metadata: {name: worker, namespace: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: worker}}
  template:
    metadata: {labels: {app: worker}}
    spec:
      containers:
      - name: worker
        image: lab.example.com/tool:1
        args: [serve]
        volumeMounts: [{name: motto, mountPath: /motto}]
      volumes: [{name: motto, secret: {secretName: motto}}]
`

const privileged = `apiVersion: v1
kind: Pod
metadata: {name: privileged, namespace: web}
spec:
  containers: [{name: a, image: "lab.example.com/tool:1", args: [serve], securityContext: {privileged: true}}]
`

func (o *operator) sharesAProject(t *testing.T) {
	o.write(t, "web.yaml", web)
	o.types(t, "hub", "kubectl apply -f web.yaml && kubectl -n team-a wait --for=condition=Ready project.cluster.drover.dev/web prtb/bob-in-web --timeout=5m")
	o.logsIn(t, "bob", "prod", "create deployments -n web")
	o.write(t, "workers.yaml", workers)
	o.types(t, "bob", "kubectl apply -f workers.yaml && kubectl -n web wait deployment/worker --for=jsonpath='{.status.availableReplicas}'=2 --timeout=5m")
	o.types(t, "bob", "kubectl -n web wait deployment/worker --for=condition=ReplicaFailure --timeout=2m")
	if got := o.types(t, "bob", "kubectl -n web get deployment worker -o jsonpath='{.status.conditions[?(@.type==\"ReplicaFailure\")].message}'"); !strings.Contains(got, "exceeded quota") {
		t.Errorf("the third pod was refused with %q, want the quota", got)
	}
	read := "kubectl -n web exec deployment/worker -- /tool read "
	if got := o.types(t, "bob", read+"/motto/motto"); got != "shared" {
		t.Errorf("the project's Secret in a pod is %q", got)
	}
	if got := o.types(t, "bob", read+"/sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"); got != "100663296" { // 96Mi
		t.Errorf("the limit of a container's memory is %q, want the project's default", got)
	}
	o.write(t, "privileged.yaml", privileged)
	o.fails(t, "bob", "kubectl apply -f privileged.yaml", `violates PodSecurity "baseline`)
	o.fails(t, "bob", "kubectl -n shop get pods", "Forbidden")
}

// guest may read edge for an hour.
const guest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: guest, namespace: team-a}
---
apiVersion: cluster.drover.dev/v1
kind: ClusterRoleTemplateBinding
metadata: {name: guest-for-an-hour, namespace: team-a}
spec:
  clusterName: edge
  roleTemplateName: cluster-viewer
  subject: {kind: User, name: "hub:system:serviceaccount:team-a:guest"}
  expiresAt: "TIME"
`

func (o *operator) lendsARole(t *testing.T) {
	o.write(t, "guest.yaml", strings.Replace(guest, "TIME", time.Now().Add(time.Hour).UTC().Format(time.RFC3339), 1))
	o.types(t, "hub", "kubectl apply -f guest.yaml && kubectl -n team-a wait --for=condition=Ready crtb/guest-for-an-hour --timeout=2m")
	o.logsIn(t, "guest", "edge", "list nodes")
	o.types(t, "guest", "kubectl get nodes")
	o.transcript.note("It is to end earlier: in 15 seconds.")
	o.types(t, "hub", `kubectl -n team-a patch crtb guest-for-an-hour --type=merge -p "{\"spec\":{\"expiresAt\":\"$(date -u -d '15 seconds' +%FT%TZ)\"}}"`)
	o.types(t, "hub", `kubectl -n team-a wait crtb/guest-for-an-hour --for=jsonpath='{.status.conditions[?(@.type=="Ready")].reason}'=Expired --timeout=5m`)
	o.fails(t, "guest", "while kubectl get nodes >/dev/null; do sleep 1; done; kubectl get nodes", "Forbidden")
	if got := o.types(t, "edge", "kubectl get clusterrolebindings -o name"); strings.Contains(got, "guest") {
		t.Errorf("the member still has the binding: %s", got)
	}
}
