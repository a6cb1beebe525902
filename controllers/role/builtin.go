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
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/config"
	"github.com/drover-dev/drover/internal/owned"
)

// BuiltIn applies the built-in role templates when the manager becomes the leader. It creates missing templates and
// reverts changes, as the API server does with its own ClusterRoles. It does not change a template whose annotation
// v1.AnnotationAutoUpdate is "false".
//
// The hub's manifests do not contain the templates, because kubectl cannot apply them together with their CRD.
type BuiltIn struct {
	// Live reads from the API server, because the caches do not contain annotations.
	Live   client.Reader
	Writer client.Writer
	Log    logr.Logger
	// Retry is the delay before the next attempt.
	Retry time.Duration
}

// The "escalate" verb allows the manager to write rules. It is limited to the names of the built-in templates.
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=roletemplates,verbs=create
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=roletemplates,verbs=update;escalate,resourceNames=cluster-member;cluster-owner;cluster-viewer;configmaps-manage;configmaps-view;ingress-manage;ingress-view;monitoring-manage;monitoring-view;project-member;project-owner;project-viewer;secrets-manage;secrets-view;serviceaccounts-manage;serviceaccounts-view;services-manage;services-view;volumes-manage;volumes-view;workloads-manage;workloads-view

// Start applies the templates. It returns when all of them have been applied or ctx is canceled.
func (b BuiltIn) Start(ctx context.Context) error {
	templates, err := Templates()
	if err != nil {
		return err
	}
	_ = wait.PollUntilContextCancel(ctx, b.Retry, true, func(ctx context.Context) (done bool, _ error) {
		var failed []error
		templates = slices.DeleteFunc(templates, func(template *unstructured.Unstructured) bool {
			err := b.apply(ctx, template)
			if err != nil {
				failed = append(failed, err)
			}
			return err == nil
		})
		if len(failed) > 0 && ctx.Err() == nil {
			b.Log.Error(errors.Join(failed...), "cannot apply built-in role templates, trying again")
		}
		return len(failed) == 0, nil
	}) // returns early only if ctx is canceled
	return nil
}

// apply replaces the whole spec. It does not use server-side apply, because templates that another client has added to
// spec.inherits would remain.
func (b BuiltIn) apply(ctx context.Context, template *unstructured.Unstructured) error {
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(template.GroupVersionKind())
	err := b.Live.Get(ctx, client.ObjectKeyFromObject(template), found)
	switch {
	case apierrors.IsNotFound(err):
		err = b.Writer.Create(ctx, template.DeepCopy(), owned.FieldOwner)
	case err == nil && found.GetAnnotations()[v1.AnnotationAutoUpdate] == "false":
		return nil
	case err == nil:
		spec := template.DeepCopy().Object["spec"].(map[string]any)
		before, _ := found.Object["spec"].(map[string]any)
		if locked, set := before["locked"]; set { // a lock that an administrator has set is kept
			spec["locked"] = locked
		}
		if equality.Semantic.DeepEqual(before, spec) {
			return nil
		}
		found.Object["spec"] = spec
		labels := found.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, template.GetLabels())
		found.SetLabels(labels)
		err = b.Writer.Update(ctx, found, owned.FieldOwner)
	}
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
			case template.GetKind() == "RoleTemplate": // skips the kustomization
				all = append(all, template)
			}
		}
	})
	return all, err
}
