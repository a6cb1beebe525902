// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package role

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/config"
	"github.com/drover-dev/drover/internal/owned"
)

// BuiltIn applies the built-in role templates when the manager starts to lead. Like the API server with its own
// ClusterRoles, it creates missing templates and reverts changes. A template with the annotation
// v1.AnnotationAutoUpdate set to "false" stays as it is.
//
// The manifests of a hub do not contain the templates, because kubectl cannot apply them together with their CRD.
type BuiltIn struct {
	// Live reads from the API server, because the caches have no annotations.
	Live   client.Reader
	Writer client.Writer
	Log    logr.Logger
	// Retry is the time between two attempts. It grows up to ten times of that.
	Retry time.Duration
}

// The right to escalate lets the manager write rules. It is limited to the names of the built-in templates.
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=roletemplates,verbs=create
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=roletemplates,verbs=patch;escalate,resourceNames=cluster-member;cluster-owner;cluster-viewer;configmaps-manage;configmaps-view;ingress-manage;ingress-view;monitoring-manage;monitoring-view;project-member;project-owner;project-viewer;secrets-manage;secrets-view;serviceaccounts-manage;serviceaccounts-view;services-manage;services-view;volumes-manage;volumes-view;workloads-manage;workloads-view

// Start applies the templates, and returns when all are applied or ctx ends.
func (b BuiltIn) Start(ctx context.Context) error {
	templates, err := Templates()
	if err != nil {
		return err
	}
	backoff := wait.Backoff{Duration: b.Retry, Factor: 1.5, Jitter: 0.1, Steps: 1 << 30, Cap: 10 * b.Retry}
	_ = wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (done bool, _ error) {
		var failed []error
		for _, template := range templates {
			if err := b.apply(ctx, template); err != nil {
				failed = append(failed, err)
			}
		}
		if len(failed) > 0 && ctx.Err() == nil {
			b.Log.Error(errors.Join(failed...), "cannot apply built-in role templates, trying again")
		}
		return len(failed) == 0, nil
	}) // it only ends early when ctx ends
	return nil
}

func (b BuiltIn) apply(ctx context.Context, template *unstructured.Unstructured) error {
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(template.GroupVersionKind())
	err := b.Live.Get(ctx, client.ObjectKeyFromObject(template), found)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read role template %s: %w", template.GetName(), err)
	case found.Annotations[v1.AnnotationAutoUpdate] == "false":
		return nil
	}
	want := template.DeepCopy()
	want.SetUID(found.UID)
	want.SetResourceVersion(found.ResourceVersion) // a template that was changed in the meantime is a conflict
	err = b.Writer.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), owned.FieldOwner, client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply role template %s: %w", template.GetName(), err)
	}
	return nil
}

// Templates returns the built-in role templates.
func Templates() ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	err := fs.WalkDir(config.RoleTemplates, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := config.RoleTemplates.ReadFile(path)
		if err != nil {
			return err
		}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 1024)
		for {
			template := &unstructured.Unstructured{}
			err := decoder.Decode(template)
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return fmt.Errorf("%s: %w", path, err)
			case template.GetKind() == "RoleTemplate": // and not the kustomization
				all = append(all, template)
			}
		}
	})
	return all, err
}
