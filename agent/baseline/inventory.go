// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

const (
	secretType   corev1.SecretType = v1.Group + "/baseline"
	keyInventory                   = "inventory"
	// maxInventory is the maximum size of a stored inventory, in bytes.
	maxInventory = 900_000
	// maxUnpacked is the maximum size of an inventory after decompression, in bytes.
	maxUnpacked = 8 << 20
)

func secretName(id string) string { return "baseline." + set.Label(id) }

// entry records an object that the agent has created, or is about to create.
type entry struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"` // empty until the object has been applied
	// Digest is the digest of the object as it was last applied, and Mark is the resulting mark; see kube.Mark.
	Digest string `json:"digest,omitempty"`
	Mark   uint64 `json:"mark,omitempty"`
}

func (e entry) ref() ref { return refOf(e.APIVersion, e.Kind, e.Namespace, e.Name) }

// record is the content of an inventory. It contains enough data to remove the objects even if the set is lost.
type record struct {
	Name           string                    `json:"name"`
	DeletionPolicy v1.BaselineDeletionPolicy `json:"deletionPolicy,omitempty"`
	Entries        []entry                   `json:"entries"`
}

// inventory lists the objects of a Baseline in a Secret. Only changes are written. If the Secret is lost and the agent
// restarts, the inventory lists only the wanted objects. Labels and field managers do not prove that the agent may
// delete another object, because any user in the member can choose them.
type inventory struct {
	secrets *kube.Secrets
	secret  string

	read    bool
	version string // resource version of the Secret; empty if it does not exist
	changed bool   // since the last write
	name    string
	policy  v1.BaselineDeletionPolicy
	entries map[ref]entry
	// interest contains the objects to watch. It is nil before the first pass.
	interest atomic.Pointer[interest]
}

// load reads the inventory unless it has been read.
func (i *inventory) load(ctx context.Context) error {
	if i.read {
		return nil
	}
	stored, err := i.secrets.Get(ctx, i.secret)
	if apierrors.IsNotFound(err) {
		i.read, i.version, i.changed, i.entries = true, "", false, map[ref]entry{}
		return nil
	}
	if err != nil {
		return err
	}
	raw, err := kube.Unpack(stored.Data[keyInventory], maxUnpacked)
	if err != nil {
		return err
	}
	var r record
	// The name in the record determines the user that the agent impersonates to delete objects.
	if json.Unmarshal(raw, &r) != nil || secretName(set.ID(set.Baseline, r.Name)) != i.secret {
		return errors.New("the Secret " + i.secret + " is not an inventory: restore it or delete it")
	}
	i.read, i.changed, i.version = true, false, stored.ResourceVersion
	i.name, i.policy = r.Name, r.DeletionPolicy
	i.entries = make(map[ref]entry, len(r.Entries))
	for _, e := range r.Entries {
		if e.refused() == "" { // otherwise, a user has edited the inventory
			i.entries[e.ref()] = e
		}
	}
	return nil
}

// refused returns the reason why the object cannot be part of a Baseline, or "".
func (e entry) refused() string {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(e.APIVersion)
	o.SetKind(e.Kind)
	o.SetNamespace(e.Namespace)
	o.SetName(e.Name)
	return baseline.Refuse(o)
}

// describe records the data that is needed to remove the objects.
func (i *inventory) describe(name string, policy v1.BaselineDeletionPolicy) {
	if i.name != name || i.policy != policy {
		i.name, i.policy, i.changed = name, policy, true
	}
}

// put records an object.
func (i *inventory) put(e entry) {
	if r := e.ref(); i.entries[r] != e {
		i.entries[r], i.changed = e, true
	}
}

// drop forgets an object.
func (i *inventory) drop(r ref) {
	if _, known := i.entries[r]; known {
		delete(i.entries, r)
		i.changed = true
	}
}

// plan records the wanted objects that the inventory lacks, and returns the recorded objects that are not wanted.
func (i *inventory) plan(all []wanted) (doomed []entry) {
	keep := make(map[ref]bool, len(all))
	for _, w := range all {
		keep[w.ref] = true
		if _, known := i.entries[w.ref]; !known && w.problem == nil {
			i.put(entry{APIVersion: w.apiVersion, Kind: w.name, Namespace: w.namespace, Name: w.object})
		}
	}
	for r, e := range i.entries {
		if !keep[r] {
			doomed = append(doomed, e)
		}
	}
	return doomed
}

// save writes the inventory if it has changed.
func (i *inventory) save(ctx context.Context) error {
	if !i.changed {
		return nil
	}
	r := record{Name: i.name, DeletionPolicy: i.policy, Entries: slices.Collect(maps.Values(i.entries))}
	slices.SortFunc(r.Entries, func(a, b entry) int { return strings.Compare(a.ref().String(), b.ref().String()) })
	raw, err := json.Marshal(r)
	if err == nil {
		raw, err = kube.Pack(raw)
	}
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if len(raw) > maxInventory {
		return fmt.Errorf("it has %d bytes, and the maximum is %d: split the Baseline", len(raw), maxInventory)
	}
	secret := &corev1.Secret{Type: secretType, Data: map[string][]byte{keyInventory: raw},
		ObjectMeta: metav1.ObjectMeta{Name: i.secret, ResourceVersion: i.version, Labels: map[string]string{
			"app.kubernetes.io/name": protocol.AgentName, v1.LabelManagedBy: v1.ManagedBy}}}
	write := i.secrets.Update
	if i.version == "" {
		write = i.secrets.Create
	}
	stored, err := write(ctx, secret)
	if err != nil {
		// Another replica or a user has changed the Secret. The next pass reads it again, or writes it again if it is lost.
		i.read = !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err)
		if apierrors.IsNotFound(err) {
			i.version = ""
		}
		return err
	}
	i.version, i.changed = stored.ResourceVersion, false
	return nil
}

// remove deletes the inventory.
func (i *inventory) remove(ctx context.Context) error {
	if err := i.secrets.Delete(ctx, i.secret); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
