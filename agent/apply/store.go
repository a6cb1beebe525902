// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

const (
	// secretType is the type of the Secrets that hold sets.
	secretType corev1.SecretType = v1.Group + "/set"
	// partSize is the maximum size, in bytes, of the part of a set that one Secret holds.
	partSize = 900_000

	keySet    = "set"    // a part of the set's JSON
	keyDigest = "digest" // digest of the whole set
	keyParts  = "parts"  // number of parts; only in the first part
)

// store stores each set as one or more Secrets. The first part contains the digest of the whole set and is written
// last, so the store always contains a complete version of the set.
type store struct{ secrets *kube.Secrets }

func firstName(id string) string { return "set." + set.Label(id) }

func partName(id, digest string, part int) string {
	return fmt.Sprintf("set-%d-%s.%s", part, digest[:min(12, len(digest))], set.Label(id))
}

// kept describes how a set is stored.
type kept struct {
	first   *corev1.Secret // the first part, without its data
	parts   []string       // names of the other parts
	unsaved *set.Set       // the set to store next; nil if the stored version is up to date
}

// save stores a set and replaces the previous version.
func (s store) save(ctx context.Context, wanted *set.Set, before kept) (kept, error) {
	raw, err := kube.Pack(wanted.JSON())
	if err != nil {
		return before, fmt.Errorf("keep set %s: %w", wanted.ID, err)
	}
	after := kept{}
	count := (len(raw) + partSize - 1) / partSize
	for part := 1; part < count; part++ {
		name := partName(wanted.ID, wanted.Digest, part)
		after.parts = append(after.parts, name)
		chunk := raw[part*partSize : min((part+1)*partSize, len(raw))]
		if _, err := s.write(ctx, secretOf(name, map[string][]byte{keySet: chunk, keyDigest: []byte(wanted.Digest)}),
			nil); err != nil {
			return before, fmt.Errorf("keep set %s: %w", wanted.ID, err)
		}
	}
	first := secretOf(firstName(wanted.ID), map[string][]byte{
		keySet: raw[:min(partSize, len(raw))], keyDigest: []byte(wanted.Digest), keyParts: []byte(strconv.Itoa(count)),
	})
	if after.first, err = s.write(ctx, first, before.first); err != nil {
		return before, fmt.Errorf("keep set %s: %w", wanted.ID, err)
	}
	for _, name := range before.parts {
		if !slices.Contains(after.parts, name) {
			_ = s.secrets.Delete(ctx, name) // load deletes the Secret if this call fails
		}
	}
	return after, nil
}

func secretOf(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: protocol.AgentLabels()}, Type: secretType, Data: data,
	}
}

// write creates or replaces a Secret. The before parameter is the previous version, or nil if no previous version is
// known.
func (s store) write(ctx context.Context, secret, before *corev1.Secret) (*corev1.Secret, error) {
	put := s.secrets.Create
	if before != nil {
		put, secret.ResourceVersion = s.secrets.Update, before.ResourceVersion
	}
	after, err := put(ctx, secret)
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) { // a previous leader wrote the Secret
		if before, err = s.secrets.Get(ctx, secret.Name); err == nil {
			secret.ResourceVersion = before.ResourceVersion
			after, err = s.secrets.Update(ctx, secret)
		}
	} else if apierrors.IsNotFound(err) {
		secret.ResourceVersion = ""
		after, err = s.secrets.Create(ctx, secret)
	}
	if err != nil {
		return nil, err
	}
	after.Data = nil
	return after, nil
}

// remove deletes the Secrets of a set.
func (s store) remove(ctx context.Context, id string, k kept) error {
	for _, name := range append([]string{firstName(id)}, k.parts...) {
		if err := s.secrets.Delete(ctx, name); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("forget set %s: %w", id, err)
		}
	}
	return nil
}

// saved is a stored set.
type saved struct {
	set     *set.Set
	content set.Content
	kept    kept
}

// load reads all stored sets. It skips sets that cannot be read, and returns their errors in the second result. The
// hub sends the skipped sets again.
func (s store) load(ctx context.Context) ([]saved, []error, error) {
	secrets, err := s.secrets.List(ctx, secretType)
	if err != nil {
		return nil, nil, fmt.Errorf("read sets: %w", err)
	}
	byName := make(map[string]*corev1.Secret, len(secrets))
	used := map[string]bool{}
	for i := range secrets {
		if secrets[i].Type == secretType {
			byName[secrets[i].Name] = &secrets[i]
		}
	}
	var all []saved
	var broken []error
	for name, first := range byName {
		if !strings.HasPrefix(name, "set.") {
			continue
		}
		one, err := join(first, byName)
		if err != nil {
			broken = append(broken, fmt.Errorf("read Secret %s: %w", name, err))
			continue
		}
		for _, part := range one.kept.parts {
			used[part] = true
		}
		all = append(all, one)
	}
	for name := range byName {
		if strings.HasPrefix(name, "set-") && !used[name] && len(broken) == 0 {
			_ = s.secrets.Delete(ctx, name) // remains from an interrupted write
		}
	}
	return all, broken, nil
}

func join(first *corev1.Secret, byName map[string]*corev1.Secret) (saved, error) {
	raw := first.Data[keySet]
	digest := string(first.Data[keyDigest])
	count, err := strconv.Atoi(string(first.Data[keyParts]))
	if err != nil || count < 1 {
		return saved{}, fmt.Errorf("the number of parts is missing")
	}
	label := strings.TrimPrefix(first.Name, "set.")
	var parts []string
	for part := 1; part < count; part++ {
		name := fmt.Sprintf("set-%d-%s.%s", part, digest[:min(12, len(digest))], label)
		secret, there := byName[name]
		if !there || string(secret.Data[keyDigest]) != digest {
			return saved{}, fmt.Errorf("part %s is missing", name)
		}
		parts = append(parts, name)
		raw = append(raw[:len(raw):len(raw)], secret.Data[keySet]...)
	}
	if raw, err = kube.Unpack(raw, 2*set.MaxSize); err != nil {
		return saved{}, err
	}
	// Parsing fails if the Secret was changed in the member. The hub cannot detect such a change, because it compares only
	// digests.
	s, content, err := set.Parse(raw)
	if err != nil {
		return saved{}, err
	}
	if firstName(s.ID) != first.Name || s.Digest != digest {
		return saved{}, errors.New("the Secret holds another set")
	}
	bare := first.DeepCopy()
	bare.Data = nil
	return saved{set: s, content: content, kept: kept{first: bare, parts: parts}}, nil
}
