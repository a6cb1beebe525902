// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/tenancy"
)

// content holds the set that a Baseline delivers to members, and facts about it.
type content struct {
	// version identifies all inputs from which the content was built.
	version string
	set     *set.Set
	// refers is true if an object refers to a value of the Cluster.
	refers bool
	// packed contains the objects as they are stored in the history. record sets it to nil.
	packed []byte
	// recorded contains the revisions in the history. record sets it.
	recorded []string
}

// revision returns the history's entry for the content.
func (c *content) revision(role string, since time.Time) v1.BaselineRevision {
	return v1.BaselineRevision{
		Revision: c.set.Baseline.Revision, RoleTemplateName: role, Objects: c.set.Baseline.Objects,
		Since: metav1.NewTime(since.Truncate(time.Second)),
	}
}

// unrecorded reports whether there was no room for the revision in the history.
func (c *content) unrecorded() bool {
	return c.recorded != nil && !slices.Contains(c.recorded, c.set.Baseline.Revision)
}

// resolve returns the content of a Baseline, or the reason why it has none.
func (r *Reconciler) resolve(ctx context.Context, b *v1.Baseline) (*content, *index.Problem, error) {
	binding, problem, err := r.binding(ctx, b)
	if problem != nil || err != nil {
		return nil, problem, err
	}
	var found []types.UID
	if b.Spec.Revision == "" {
		if found, problem, err = r.findSources(ctx, b); problem != nil || err != nil {
			return nil, problem, err
		}
	}
	name := client.ObjectKeyFromObject(b)
	version := versionOf(b, binding, b.Spec.Revision, found)
	if known := r.known.recall(name, version); known != nil {
		return known, nil, nil
	}
	objects, problem, err := r.read(ctx, b, found)
	if problem != nil || err != nil {
		return nil, problem, err
	}
	made, problem, err := build(b, binding, version, objects)
	if problem != nil || err != nil {
		return nil, problem, err
	}
	r.known.remember(name, made)
	return made, nil, nil
}

// binding returns the binding of the Baseline's user, or the reason why there is none.
func (r *Reconciler) binding(ctx context.Context, b *v1.Baseline) (*rbacv1.ClusterRoleBinding, *index.Problem, error) {
	var list v1.RoleTemplateList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list role templates: %w", err)
	}
	binding, err := access.BaselineBinding(access.Index(list.Items), b)
	var refused *access.Error
	if errors.As(err, &refused) {
		return nil, &index.Problem{
			Reason: refused.Reason, Message: refused.Message, Stalled: refused.Reason != v1.ReasonRoleTemplateNotFound,
		}, nil
	}
	return binding, nil, err
}

func versionOf(b *v1.Baseline, binding *rbacv1.ClusterRoleBinding, revision string, sources []types.UID) string {
	return fmt.Sprint(b.UID, " ", b.Generation, " ", binding.RoleRef.Name, " ", revision, " ", sources)
}

// build creates the content of a Baseline.
func build(
	b *v1.Baseline, binding *rbacv1.ClusterRoleBinding, version string, objects []json.RawMessage,
) (*content, *index.Problem, error) {
	bound, err := set.Object(binding)
	if err != nil {
		return nil, nil, err
	}
	made := &content{version: version, refers: slices.ContainsFunc(objects, baseline.Refers)}
	if made.packed, err = pack(objects); err != nil {
		return nil, invalid(err), nil
	}
	made.set, err = set.New(set.ID(set.Baseline, b.Name), nil, set.Content{
		Objects: []*unstructured.Unstructured{bound}, Baseline: payload(b, objects),
	})
	if err != nil {
		return nil, invalid(err), nil
	}
	return made, nil, nil
}

func payload(b *v1.Baseline, objects []json.RawMessage) *set.BaselineContent {
	content := &set.BaselineContent{
		Name: b.Name, Revision: baseline.Revision(b.Spec.RoleTemplateName, objects), Objects: objects,
		Drift: b.Spec.Drift, Conflicts: b.Spec.Conflicts, DeletionPolicy: b.Spec.DeletionPolicy,
	}
	if limit := b.Spec.HealthTimeout; limit != nil {
		content.HealthSeconds = int64((limit.Duration + time.Second - 1) / time.Second)
	}
	return content
}

func invalid(err error) *index.Problem {
	return &index.Problem{Reason: v1.ReasonInvalidManifests, Message: err.Error(), Stalled: true}
}

// findSources returns the versions of the sources in spec.from, in the same order.
func (r *Reconciler) findSources(
	ctx context.Context, b *v1.Baseline,
) ([]types.UID, *index.Problem, error) {
	var found []types.UID
	for _, from := range b.Spec.From {
		o := index.SourceMetadata(from.Kind)
		err := r.Sources.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: from.Name}, o)
		if apierrors.IsNotFound(err) {
			return nil, sourceNotFound(b, from), nil
		} else if err != nil {
			return nil, nil, fmt.Errorf("read the metadata of %s %s/%s: %w", from.Kind, b.Namespace, from.Name, err)
		}
		found = append(found, versionOfSource(o))
	}
	return found, nil, nil
}

func versionOfSource(o metav1.Object) types.UID {
	return o.GetUID() + "@" + types.UID(o.GetResourceVersion())
}

func sourceNotFound(b *v1.Baseline, from v1.BaselineSource) *index.Problem {
	return &index.Problem{Reason: v1.ReasonSourceNotFound, Message: fmt.Sprintf(
		"%s %s does not exist in namespace %s, or does not have the label %s: \"true\"",
		from.Kind, from.Name, b.Namespace, v1.LabelBaselinesUse)}
}

// read reads the objects from the API server. The sources must have the versions that findSources returned.
func (r *Reconciler) read(
	ctx context.Context, b *v1.Baseline, versions []types.UID,
) ([]json.RawMessage, *index.Problem, error) {
	live := &v1.Baseline{}
	name := client.ObjectKeyFromObject(b)
	if err := r.Live.Get(ctx, name, live); client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read baseline %s: %w", name, err)
	} else if err != nil || live.UID != b.UID || live.Generation != b.Generation {
		return nil, nil, errOutdated
	}
	if b.Spec.Revision != "" {
		return r.pinned(ctx, b, b.Spec.Revision)
	}
	var sources []baseline.Source
	if len(live.Spec.Manifests) > 0 {
		var documents [][]byte
		for _, manifest := range live.Spec.Manifests {
			documents = append(documents, manifest.Raw)
		}
		sources = append(sources, baseline.Source{
			Name: "spec.manifests", Text: bytes.Join(documents, []byte("\n---\n")), Public: true,
		})
	}
	for i, from := range b.Spec.From {
		more, problem, err := r.readSource(ctx, b, from, versions[i])
		if problem != nil || err != nil {
			return nil, problem, err
		}
		sources = append(sources, more...)
	}
	objects, err := baseline.Parse(sources)
	if err != nil {
		return nil, invalid(err), nil
	}
	return objects, nil, nil
}

// readSource reads a ConfigMap or Secret from the API server. It returns one source for each key.
func (r *Reconciler) readSource(
	ctx context.Context, b *v1.Baseline, from v1.BaselineSource, version types.UID,
) ([]baseline.Source, *index.Problem, error) {
	name, data := types.NamespacedName{Namespace: b.Namespace, Name: from.Name}, map[string][]byte{}
	var object client.Object
	var err error
	if from.Kind == index.SecretSource {
		secret := &corev1.Secret{}
		err = r.Live.Get(ctx, name, secret)
		object, data = secret, secret.Data
	} else {
		configMap := &corev1.ConfigMap{}
		err = r.Live.Get(ctx, name, configMap)
		for key, text := range configMap.Data {
			data[key] = []byte(text)
		}
		maps.Copy(data, configMap.BinaryData)
		object = configMap
	}
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, nil, fmt.Errorf("read %s %s: %w", from.Kind, name, err)
	case err != nil, object.GetLabels()[v1.LabelBaselinesUse] != "true":
		return nil, sourceNotFound(b, from), nil
	case versionOfSource(object) != version:
		return nil, nil, errOutdated
	}
	if refusal := refuse(object, data); refusal != "" {
		return nil, &index.Problem{
			Reason: v1.ReasonSecretRefused, Message: fmt.Sprintf("Secret %s is not used: %s", from.Name, refusal), Stalled: true,
		}, nil
	}
	var sources []baseline.Source
	for _, key := range slices.Sorted(maps.Keys(data)) {
		sources = append(sources, baseline.Source{
			Name: fmt.Sprintf("%s %s, key %s", from.Kind, from.Name, key), Text: data[key],
		})
	}
	return sources, nil, nil
}

// refuse returns the reason why a Secret cannot be a source, or "".
func refuse(object client.Object, data map[string][]byte) string {
	secret, is := object.(*corev1.Secret)
	if !is {
		return ""
	}
	if refusal := tenancy.NeverCopied(secret); refusal != "" {
		return refusal
	}
	size := 0
	for key, value := range data {
		size += len(key) + len(value)
	}
	if size > index.MaxSecretData {
		return fmt.Sprintf("it has %d KiB of data, and the maximum is %d KiB: split it", size>>10, index.MaxSecretData>>10)
	}
	return ""
}

// maxRemembered is the maximum total size of the remembered content, in bytes. The delivery store has its own limit.
const maxRemembered = 16 << 20

// memory keeps the content of Baselines for the next reconcile. When it is full, it drops the content of some
// Baselines.
type memory struct {
	mu   sync.Mutex // guards the fields below
	all  map[types.NamespacedName]*content
	held int // total size of the sets, in bytes
}

func (m *memory) recall(name types.NamespacedName, version string) *content {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.all[name]; known != nil && known.version == version {
		return known
	}
	return nil
}

func (m *memory) remember(name types.NamespacedName, c *content) {
	m.forget(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[types.NamespacedName]*content{}
	}
	m.all[name] = c
	m.held += len(c.set.JSON())
	for other, known := range m.all {
		if m.held <= maxRemembered {
			return
		}
		delete(m.all, other)
		m.held -= len(known.set.JSON())
	}
}

func (m *memory) forget(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.all[name]; known != nil {
		m.held -= len(known.set.JSON())
		delete(m.all, name)
	}
}
