// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Kinds of objects that can contain a Baseline's manifests.
const (
	ConfigMapSource = "ConfigMap"
	SecretSource    = "Secret"
)

// SourceMetadata returns an empty object for reading the metadata of a Baseline's source.
func SourceMetadata(kind string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return o
}

// SourceOutline is a cache transform. It keeps only the metadata that identifies a Baseline's source and its version.
func SourceOutline(object any) (any, error) {
	o, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}}, nil
}

// SourceToBaselines returns a Lookup that finds the Baselines that use a ConfigMap or Secret in their workspace.
func SourceToBaselines(kind string) Lookup {
	return func(ctx context.Context, reader client.Reader, source client.Object) ([]types.NamespacedName, error) {
		var list v1.BaselineList
		workspace := source.GetNamespace()
		if err := reader.List(ctx, &list, client.InNamespace(workspace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list baselines of %s: %w", workspace, err)
		}
		var found []types.NamespacedName
		for i := range list.Items {
			b := &list.Items[i]
			if slices.Contains(b.Spec.From, v1.BaselineSource{Kind: kind, Name: source.GetName()}) {
				found = append(found, client.ObjectKeyFromObject(b))
			}
		}
		return found, nil
	}
}
