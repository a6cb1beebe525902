// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/kinds"
)

// bundled returns the kinds of objects that a bundle contains. A bundle must never contain Secrets or ConfigMaps.
func bundled() []schema.GroupVersionKind {
	all := cli.Map(kinds.All(), func(k kinds.Kind) schema.GroupVersionKind { return v1.GroupVersion.WithKind(k.Name) })
	return append(all, ofManager()...)
}

// ofManager returns the kinds for which a bundle contains only objects in the manager's namespace.
func ofManager() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("Deployment"), coordinationv1.SchemeGroupVersion.WithKind("Lease"),
		corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Event"),
	}
}

// writeBundle writes the status of a hub and the hub's objects to a new file. It fails if the file already exists.
func writeBundle(ctx context.Context, h *cli.Hub, name, managerNamespace string, status *hubStatus) (err error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create the bundle: %w", err)
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			_ = os.Remove(name)
		}
	}()
	zipped := gzip.NewWriter(file)
	b := &bundle{Writer: tar.NewWriter(zipped), now: time.Now()}
	counts := map[string]any{
		"hub": map[string]any{
			"kubernetes": status.Hub.Kubernetes, "replicas": status.Hub.Replicas, "ready": status.Hub.Ready,
		},
		"leader": status.Leader, "agents": status.Agents, "certificates": status.Certificates,
	}
	if err := b.add("status.json", counts); err != nil {
		return err
	}
	for _, kind := range bundled() {
		if err := b.addKind(ctx, h, kind, managerNamespace); err != nil {
			return err
		}
	}
	return errors.Join(b.Close(), zipped.Close())
}

// bundle is an archive of JSON files.
type bundle struct {
	*tar.Writer
	now time.Time
}

func (b *bundle) add(name string, content any) error {
	raw, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	header := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(raw)), ModTime: b.now}
	if err := b.WriteHeader(header); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	if _, err := b.Write(raw); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}

// addKind adds all objects of a kind that the user may read.
func (b *bundle) addKind(ctx context.Context, h *cli.Hub, kind schema.GroupVersionKind, managerNamespace string) error {
	name := strings.ToLower(kind.Kind) + "s.json"
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	var where []client.ListOption
	if slices.Contains(ofManager(), kind) {
		where = append(where, client.InNamespace(managerNamespace))
	}
	err := h.List(ctx, list, where...)
	if apierrors.IsForbidden(err) && len(where) == 0 {
		err = h.List(ctx, list, h.InWorkspace())
	}
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return b.add(name, "not read: "+string(apierrors.ReasonForError(err)))
	case err != nil:
		return fmt.Errorf("list objects of kind %s: %w", kind.Kind, err)
	}
	objects := []any{}
	for i := range list.Items {
		objects = append(objects, withoutTexts(list.Items[i].Object))
	}
	return b.add(name, objects)
}

// redacted is written to a bundle in place of each string that is removed.
const redacted = "(removed)"

// withoutTexts returns a copy of an object for a bundle. It keeps numbers, booleans, times, and strings that identify
// objects or come from a fixed set. All other strings, including messages and labels, are removed, because they may
// contain secrets.
func withoutTexts(object map[string]any) map[string]any {
	kept := map[string]any{}
	for key, value := range object {
		if key == "metadata" {
			kept[key] = identityOf(value)
			continue
		}
		kept[key] = withoutText(key, value)
	}
	return kept
}

// identityOf returns only the metadata that identifies an object.
func identityOf(metadata any) map[string]any {
	kept := map[string]any{}
	fields, _ := metadata.(map[string]any)
	for _, key := range []string{"name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp"} {
		if value, found := fields[key]; found {
			kept[key] = value
		}
	}
	return kept
}

// plainKeys returns the keys whose string values are kept. These values are object names, or come from a fixed set that
// the hub or an API server defines.
func plainKeys() []string {
	return []string{
		"apiVersion", "kind", "type", "status", "reason", "phase", "lastTransitionTime", "lastUpdateTime", "renewTime",
		"acquireTime", "firstTimestamp", "lastTimestamp", "eventTime", "startTime", "expiresAt", "clusterName",
		"projectName", "roleTemplateName", "clusterUID", "state", "summary", "profile", "context",
	}
}

func withoutText(key string, value any) any {
	switch value := value.(type) {
	case map[string]any:
		kept := map[string]any{}
		if slices.Contains(freeMaps(), key) {
			return redacted
		}
		for inner, one := range value {
			if isFieldName(inner) {
				kept[inner] = withoutText(inner, one)
			}
		}
		return kept
	case []any:
		kept := []any{}
		for _, one := range value {
			kept = append(kept, withoutText(key, one))
		}
		return kept
	case string:
		if slices.Contains(plainKeys(), key) && len(value) <= maxPlain && !strings.ContainsAny(value, " \n=") {
			return value
		}
		return redacted
	}
	return value
}

// freeMaps returns the fields that contain maps with user-defined keys.
func freeMaps() []string {
	return []string{
		"labels", "annotations", "matchLabels", "nodeSelector", "data", "limits", "requests", "resourceQuota",
		"namespaceDefaultResourceQuota", "claims", "inventory", "facts", "postCompleteLabels",
	}
}

// maxPlain is the maximum length of a string in a bundle.
const maxPlain = 253

// isFieldName reports whether a key may be the name of a field rather than a user-defined map key.
func isFieldName(key string) bool {
	for _, r := range key {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return false
		}
	}
	return key != "" && len(key) <= maxField
}

// maxField is the maximum length of a field name in a bundle. The longest field name in Drover's kinds is 29 letters
// long.
const maxField = 32
