// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/framework"
)

// The manager's namespace and ServiceAccount on the hub, as defined in config/.
const (
	managerNamespace = "drover-system"
	managerAccount   = "drover-manager"
)

// kindsLimit is how long the API server may take to serve the kinds of the hub. It usually takes less than a second.
const kindsLimit = 30 * time.Second

// installHub applies the same objects as "make deploy", except the manager's Deployment, because no node can run it.
func (d *demo) installHub(ctx context.Context) (string, error) {
	// The kinds are applied first, because the API server must know them before it accepts the role templates.
	if err := d.applyFolders(ctx, nil, "config/crd"); err != nil {
		return "", err
	}
	waiting, stop := context.WithTimeoutCause(ctx, kindsLimit, fmt.Errorf("not within %s", kindsLimit))
	defer stop()
	if err := framework.AwaitKinds(waiting, d.hub.client); err != nil {
		return "", err
	}
	return "", d.applyFolders(ctx, []string{"config/manager/namespace.yaml", "hack/demo/rights/hub.yaml"},
		"config/policy", "config/roles", "config/rbac")
}

// applyFolders applies files and the resources of the kustomizations in folders.
func (d *demo) applyFolders(ctx context.Context, files []string, folders ...string) error {
	paths := slices.Clone(files)
	for _, folder := range folders {
		listed, err := d.listResources(folder)
		if err != nil {
			return err
		}
		paths = append(paths, listed...)
	}
	manifests, err := d.readSources(paths...)
	if err != nil {
		return err
	}
	return d.hub.apply(ctx, manifests)
}

// listResources reads a kustomization that only lists resources. It does not use kustomize, because building
// kustomize would take half a minute.
func (d *demo) listResources(folder string) ([]string, error) {
	raw, err := os.ReadFile(d.files.source(folder + "/kustomization.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read kustomization: %w", err)
	}
	var kustomization struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Resources  []string `json:"resources"`
	}
	if err := yaml.UnmarshalStrict(raw, &kustomization); err != nil {
		return nil, fmt.Errorf("read kustomization %s: %w: the demo takes lists of resources only", folder, err)
	}
	for i, resource := range kustomization.Resources {
		kustomization.Resources[i] = path.Join(folder, resource)
	}
	return kustomization.Resources, nil
}

// readSources returns the concatenated YAML files of the source tree.
func (d *demo) readSources(paths ...string) ([]byte, error) {
	var all bytes.Buffer
	for _, path := range paths {
		raw, err := os.ReadFile(d.files.source(path))
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		all.WriteString("---\n")
		all.Write(append(raw, '\n'))
	}
	return all.Bytes(), nil
}

func (d *demo) url() string { return hubURL(d.state.HubPort) }

func hubURL(port int) string { return "https://" + address(port) }

// agentURL returns the URL at which agents reach the hub.
func (d *demo) agentURL() string { return agentURLs(d.state.Nodes, d.state.HubPort)[0] }

// agentURLs returns the hub's URLs. The URL for agents comes first. Pods reach ports on the machine's loopback
// interface only through the bridge, and the machine itself cannot reach the bridge.
func agentURLs(nodes string, port int) []string {
	if nodes == realNodes {
		return []string{fmt.Sprintf("https://%s:%d", bridgeAddress, port), hubURL(port)}
	}
	return []string{hubURL(port)}
}

// managerConfig returns the manager's configuration file. All other settings have the same defaults as in a real
// cluster. image is the agents' image, or "" if agents run as processes.
func managerConfig(nodes string, port int, image string) ([]byte, error) {
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": config.APIVersion, "kind": config.Kind, "namespace": managerNamespace,
		"server": map[string]any{"listen": address(port), "urls": agentURLs(nodes, port)},
		"agent":  map[string]any{"image": image},
		"signIn": map[string]any{"issuer": hubURL(port)},
		"health": map[string]any{"listen": config.ListenNowhere}, "metrics": map[string]any{"listen": config.ListenNowhere},
	})
	if err != nil {
		return nil, fmt.Errorf("write the manager's configuration: %w", err)
	}
	return content, nil
}

// startManager runs the manager with the rights of its ServiceAccount, which are the same as in a real cluster.
func (d *demo) startManager(ctx context.Context) (string, error) {
	if err := d.keepHubPort(); err != nil {
		return "", err
	}
	image, err := d.agentImage()
	if err != nil {
		return "", err
	}
	content, err := managerConfig(d.state.Nodes, d.state.HubPort, image)
	if err != nil {
		return "", err
	}
	file, kubeconfig := d.files.file("manager.yaml"), d.files.kubeconfig(manager)
	if err := writeFile(file, content); err != nil {
		return "", err
	}
	return d.keepOrStart(ctx, program{
		name:    manager,
		args:    []string{"--config=" + file, "--kubeconfig=" + kubeconfig},
		content: content,
		credential: func(ctx context.Context) error {
			return d.writeAccountKubeconfig(ctx, d.hub, managerNamespace, managerAccount, kubeconfig)
		},
		healthy: func(ctx context.Context) error {
			return errors.Join(answers(ctx, kubeconfig, "/version"), d.hubServes(ctx, "/readyz"))
		},
	})
}

// hubServes returns nil if the hub serves a path. Otherwise, it returns the reason, for example that another program
// uses the hub's port.
func (d *demo) hubServes(ctx context.Context, path string) error {
	bundle, err := d.hubBundle(ctx)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("the hub's CA bundle is empty")
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	defer c.CloseIdleConnections()
	return get(ctx, c, d.url()+path)
}

// hubBundle returns the PEM-encoded CA bundle for the hub's port.
func (d *demo) hubBundle(ctx context.Context) ([]byte, error) {
	secret := &corev1.Secret{}
	name := types.NamespacedName{Namespace: managerNamespace, Name: trust.AuthoritySecret}
	if err := d.hub.client.Get(ctx, name, secret); err != nil {
		return nil, fmt.Errorf("read the hub's CA: %w", err)
	}
	authority, err := trust.ReadSecret(secret)
	if err != nil {
		return nil, err
	}
	return authority.Bundle(), nil
}
