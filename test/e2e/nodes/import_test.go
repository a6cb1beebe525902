// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hubURLs are the URLs of the hub's NodePort on both its nodes, as in testdata/lab.yaml.
const (
	hubURL  = "https://10.90.0.10:30443"
	hubURLs = `"` + hubURL + `", "https://10.90.0.11:30443"`
)

// overlay is the overlay of docs/operations/install.md, with the Service as a NodePort.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../config/default
images:
- {name: drover, newName: NAME, newTag: TAG}
configMapGenerator:
- name: drover-config
  namespace: drover-system
  behavior: replace
  files: [config.yaml]
patches:
- patch: |
    apiVersion: v1
    kind: Service
    metadata: {name: drover, namespace: drover-system}
    spec:
      type: NodePort
      ports: [{name: https, port: 443, protocol: TCP, nodePort: 30443}]
`

func (o *operator) deploysTheHub(t *testing.T) {
	o.write(t, "hub/config.yaml", o.config(t))
	if err := os.CopyFS(filepath.Join(o.dir, "config"), os.DirFS(filepath.Join(o.sources, "config"))); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	name, tag, _ := strings.Cut(o.image, ":")
	o.write(t, "hub/kustomization.yaml", strings.NewReplacer("NAME", name, "TAG", tag).Replace(overlay))

	start := time.Now()
	if out, err := o.tries(o.ended, "hub", "kubectl apply --server-side -k hub"); err == nil || !strings.Contains(out, "RoleTemplate") {
		t.Logf("the first apply ended with %v: %s", err, out) // the kinds may be known already
	}
	o.types(t, "hub", "kubectl wait --for=condition=Established crd -l app.kubernetes.io/part-of=drover --timeout=5m")
	o.types(t, "hub", "kubectl apply --server-side -k hub")
	o.types(t, "hub", "kubectl -n drover-system rollout status deployment/drover-manager --timeout=8m")
	o.transcript.note("From the first apply to a hub that is available: %s.", time.Since(start).Round(time.Second))
	if nodes := o.types(t, "hub", "kubectl -n drover-system get pods -o jsonpath='{range .items[*]}{.spec.nodeName}{\"\\n\"}{end}' | sort"); nodes != "hub-1\nhub-2" {
		t.Errorf("the replicas are on the nodes %q, want one on each", nodes)
	}
}

// config returns the manager's configuration, with the addresses of this hub.
func (o *operator) config(t *testing.T) string {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(o.sources, "config/manager/config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(config), `"https://drover.example.com"`, hubURLs, 1)
}

func (o *operator) importsClusters(t *testing.T) {
	o.types(t, "hub", "curl -sS --insecure --retry 60 --retry-delay 1 --retry-connrefused "+hubURL+"/readyz")
	o.write(t, "clusters.yaml", `apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: cluster.drover.dev/v1
kind: Cluster
metadata: {name: prod, namespace: team-a, labels: {env: prod}}
---
apiVersion: cluster.drover.dev/v1
kind: Cluster
metadata: {name: edge, namespace: team-a, labels: {env: edge}}
`)
	o.types(t, "hub", "kubectl apply -f clusters.yaml")
	o.types(t, "hub", "kubectl -n team-a wait --for=create secret/prod-registration secret/edge-registration --timeout=2m")
	start := time.Now()
	for _, member := range []string{"prod", "edge"} {
		// The command contains the join token, so it is written to a file and not to the transcript.
		o.types(t, "hub", "kubectl -n team-a get secret -l cluster.drover.dev/secret=registration,cluster.drover.dev/cluster="+member+
			" -o go-template='{{range .items}}{{.data.command | base64decode}}{{end}}' > import-"+member+".sh")
		o.types(t, member, "sh import-"+member+".sh")
	}
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=Ready cluster --all --timeout=8m")
	o.transcript.note("From the command to Ready: %s, for both.", time.Since(start).Round(time.Second))
	for _, member := range []string{"prod", "edge"} {
		o.types(t, member, "kubectl -n drover-agent rollout status deployment/drover-agent --timeout=5m")
	}
	if nodes := o.types(t, "prod", "kubectl -n drover-agent get pods -o jsonpath='{range .items[*]}{.spec.nodeName}{\"\\n\"}{end}' | sort"); nodes != "prod-1\nprod-2" {
		t.Errorf("the agents are on the nodes %q, want one on each", nodes)
	}
	if got := o.types(t, "hub", "kubectl -n team-a get clusters"); strings.Count(got, "Connected") != 2 {
		t.Errorf("not both are connected:\n%s", got)
	}
}
