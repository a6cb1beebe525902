// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// provider is a manager of Cluster API, with the account of its own manifests.
type provider struct{ program, folder, namespace, account string }

func providers() []provider {
	return []provider{
		{lab.CoreProvider, "core", "capi-system", "capi-manager"},
		{lab.BootstrapProvider, "bootstrap/kubeadm", "capi-kubeadm-bootstrap-system", "capi-kubeadm-bootstrap-manager"},
		{lab.ControlPlaneProvider, "controlplane/kubeadm", "capi-kubeadm-control-plane-system", "capi-kubeadm-control-plane-manager"},
	}
}

// withToken provides a program with a token at the path where config/clusterapi/samples/token-patch.yaml mounts one.
const withToken = `set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/secrets/drover
cp "$0" /run/secrets/drover/token
exec "$@"`

// startProvider applies the provider's own manifests except for the Deployment, and starts its manager with the rights
// of its account.
func (c *capi) startProvider(t *testing.T, p provider) {
	t.Helper()
	sources, err := c.tool.Sources(t.Context(), lab.ClusterAPIModule)
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.hub.Kubectl(t.Context(), nil, "kustomize", filepath.Join(sources, p.folder, "config", "default"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.dir, p.program)
	certificate := servingCertificate(t, dir)
	port := freePort(t)
	var crds, rest [][]byte
	for document := range strings.SplitSeq(all, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		atLoopback(object.Object, "https://127.0.0.1:"+port, certificate)
		raw, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		switch object.GetKind() {
		case "Deployment", "Service", "Certificate", "Issuer":
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			rest = append(rest, raw)
		default:
			crds = append(crds, raw)
		}
	}
	c.apply(t, string(bytes.Join(crds, []byte("\n---\n"))))
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // kubectl gives up on an object without a status
		_, err := c.hub.Kubectl(ctx, nil, "wait", "--for=condition=Established", "crd", "--all")
		return err
	})
	kubeconfig, tokenFile := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token")
	narrow := c.token(t, p.namespace, p.account, c.hub.URL()) // good at the hub's proxy, and not at its API server
	if err := errors.Join(framework.WriteKubeconfig(kubeconfig, c.hub.Plane.URL(), c.hub.CA(), c.token(t, p.namespace, p.account)),
		os.WriteFile(tokenFile, []byte(narrow), 0o600)); err != nil {
		t.Fatal(err)
	}
	health := "127.0.0.1:" + freePort(t)
	var gates []string
	if c.gates != "" {
		gates = []string{"--feature-gates=" + c.gates}
	}
	process := c.run(t, lab.Command{
		Name: p.program, Path: "unshare", Env: append(os.Environ(), "POD_NAMESPACE="+p.namespace, "POD_NAME="+p.account, "POD_UID=0"),
		Args: append([]string{"--mount", "--fork", "--kill-child", "sh", "-c", withToken, tokenFile, c.tool.Assets[p.program], "--kubeconfig=" + kubeconfig, "--webhook-port=" + port, "--webhook-cert-dir=" + dir,
			"--health-addr=" + health, "--diagnostics-address=127.0.0.1:" + freePort(t), "--insecure-diagnostics"}, gates...),
	})
	if err := process.WaitReady(within(t, 2*time.Minute), func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err != nil {
			return err
		}
		return connection.Close()
	}); err != nil {
		t.Fatal(err)
	}
	c.apply(t, string(bytes.Join(rest, []byte("\n---\n"))))
}

// atLoopback replaces references to a Service of webhooks with the address of a process.
func atLoopback(node any, url string, certificate []byte) {
	switch n := node.(type) {
	case []any:
		for _, item := range n {
			atLoopback(item, url, certificate)
		}
	case map[string]any:
		if clientConfig, ok := n["clientConfig"].(map[string]any); ok {
			if service, ok := clientConfig["service"].(map[string]any); ok {
				n["clientConfig"] = map[string]any{"url": fmt.Sprint(url, service["path"]), "caBundle": base64.StdEncoding.EncodeToString(certificate)}
			}
		}
		for _, item := range n {
			atLoopback(item, url, certificate)
		}
	}
}

// servingCertificate writes a self-signed certificate for the loopback address, and its key, into a folder.
func servingCertificate(t *testing.T, dir string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600)); err != nil {
		t.Fatal(err)
	}
	return certificate
}

func decoded(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// clusterManifest is the manifest that a user applies, from docs/guide/cluster-api.md.
const clusterManifest = `
apiVersion: cluster.drover.dev/v1
kind: Cluster
metadata: {name: web, namespace: team}
spec:
  agent:
    tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists}]
---
apiVersion: cluster.drover.dev/v1
kind: ClusterRoleTemplateBinding
metadata: {name: cluster-api, namespace: team}
spec: {clusterName: web, roleTemplateName: cluster-owner, subject: {kind: User, name: "hub:system:serviceaccount:capi-system:capi-manager"}}
---
apiVersion: cluster.drover.dev/v1
kind: ClusterRoleTemplateBinding
metadata: {name: cluster-api-bootstrap, namespace: team}
spec: {clusterName: web, roleTemplateName: cluster-owner, subject: {kind: User, name: "hub:system:serviceaccount:capi-kubeadm-bootstrap-system:capi-kubeadm-bootstrap-manager"}}
---
apiVersion: cluster.drover.dev/v1
kind: ClusterRoleTemplateBinding
metadata: {name: cluster-api-control-plane, namespace: team}
spec: {clusterName: web, roleTemplateName: cluster-owner, subject: {kind: User, name: "hub:system:serviceaccount:capi-kubeadm-control-plane-system:capi-kubeadm-control-plane-manager"}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: web, namespace: team}
spec:
  clusterNetwork: {pods: {cidrBlocks: [10.244.0.0/16]}}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: KubeadmControlPlane, name: web}
  infrastructureRef: {apiGroup: infrastructure.cluster.drover.dev, kind: DroverCluster, name: web}
---
apiVersion: infrastructure.cluster.drover.dev/v1
kind: DroverCluster
metadata: {name: web, namespace: team}
spec:
  controlPlaneEndpoint: {host: 127.0.0.1, port: @PORT@}
---
apiVersion: infrastructure.cluster.drover.dev/v1
kind: DroverMachineTemplate
metadata: {name: web, namespace: team}
spec:
  template:
    spec: {antiAffinity: {topologyKey: rack}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlane
metadata:
  name: web
  namespace: team
  annotations: {controlplane.cluster.x-k8s.io/skip-kube-proxy: "", controlplane.cluster.x-k8s.io/skip-coredns: ""}
spec:
  replicas: 1
  version: @VERSION@
  machineTemplate: {spec: {infrastructureRef: {apiGroup: infrastructure.cluster.drover.dev, kind: DroverMachineTemplate, name: web}}}
  kubeadmConfigSpec:
    initConfiguration:
      nodeRegistration: {kubeletExtraArgs: [{name: provider-id, value: "drover://{{ ds.meta_data.instance_id }}"}]}
    joinConfiguration:
      nodeRegistration: {kubeletExtraArgs: [{name: provider-id, value: "drover://{{ ds.meta_data.instance_id }}"}]}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
metadata: {name: web, namespace: team}
spec:
  template:
    spec:
      joinConfiguration:
        nodeRegistration: {kubeletExtraArgs: [{name: provider-id, value: "drover://{{ ds.meta_data.instance_id }}"}]}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {name: web-workers, namespace: team}
spec:
  clusterName: web
  replicas: 2
  selector: {matchLabels: {}}
  template:
    metadata:
      annotations: {machineset.cluster.x-k8s.io/skip-preflight-checks: All}
    spec:
      clusterName: web
      version: @VERSION@
      bootstrap: {configRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: KubeadmConfigTemplate, name: web}}
      infrastructureRef: {apiGroup: infrastructure.cluster.drover.dev, kind: DroverMachineTemplate, name: web}
`
