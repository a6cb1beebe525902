// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// rendered has the manifests of folders by path. All planes of a test binary share them.
var rendered = struct {
	sync.Mutex
	manifests map[string][]byte
}{manifests: map[string][]byte{}}

// render returns the manifests that kustomize builds from a folder of the sources.
func (p *Plane) render(ctx context.Context, folder string) ([]byte, error) {
	rendered.Lock()
	defer rendered.Unlock()
	path := filepath.Join(p.programs.Root, folder)
	if manifests, found := rendered.manifests[path]; found {
		return manifests, nil
	}
	out, err := p.Kubectl(ctx, nil, "kustomize", path)
	if err != nil {
		return nil, err
	}
	rendered.manifests[path] = []byte(out)
	return rendered.manifests[path], nil
}

// applyHub applies what "make deploy" applies, except the Deployment.
func (p *Plane) applyHub(ctx context.Context) error {
	namespace, err := os.ReadFile(filepath.Join(p.programs.Root, "config/manager/namespace.yaml"))
	if err != nil {
		return fmt.Errorf("read the manager's namespace: %w", err)
	}
	if err := Apply(ctx, p.Client, namespace); err != nil {
		return err
	}
	return p.applyFolders(ctx, "config/crd", "config/policy", "config/roles", "config/rbac")
}

// applyFolders applies what kustomize builds from folders of the sources, and waits until the API server serves the
// kinds of their CRDs.
func (p *Plane) applyFolders(ctx context.Context, folders ...string) error {
	for _, folder := range folders {
		manifests, err := p.render(ctx, folder)
		if err != nil {
			return err
		}
		if err := Apply(ctx, p.Client, manifests); err != nil {
			return fmt.Errorf("apply %s: %w", folder, err)
		}
	}
	return AwaitKinds(ctx, p.Client)
}

// Apply applies manifests as "kubectl apply --server-side" does. kubectl would make the API server build its OpenAPI
// documents first, which takes more CPU time than all the objects of a hub.
func Apply(ctx context.Context, c client.Client, manifests []byte, options ...client.ApplyOption) error {
	objects, err := objectsIn(manifests)
	if err != nil {
		return err
	}
	options = append(options, client.FieldOwner("kubectl"))
	for _, object := range objects {
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), options...); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), client.ObjectKeyFromObject(object), err)
		}
	}
	return nil
}

// objectsIn returns the objects in manifests. Like kubectl, it refuses duplicate keys.
func objectsIn(manifests []byte) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		var text []byte
		if err == nil {
			text, err = yaml.YAMLToJSONStrict(document)
		}
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		if string(text) == "null" { // only comments
			continue
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		all = append(all, object)
	}
}

// AwaitKinds waits until all CRDs are established.
func AwaitKinds(ctx context.Context, c client.Client) error {
	return Await(ctx, func(ctx context.Context) error {
		crds := &unstructured.UnstructuredList{}
		crds.SetAPIVersion("apiextensions.k8s.io/v1")
		crds.SetKind("CustomResourceDefinitionList")
		if err := c.List(ctx, crds); err != nil {
			return fmt.Errorf("list CRDs: %w", err)
		}
		for _, crd := range crds.Items {
			if !established(crd.Object) {
				return fmt.Errorf("CRD %s is not established", crd.GetName())
			}
		}
		return nil
	})
}

func established(crd map[string]any) bool {
	conditions, _, _ := unstructured.NestedSlice(crd, "status", "conditions")
	for _, condition := range conditions {
		if c, ok := condition.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}
