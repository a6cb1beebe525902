// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keyring reads the issuer's keys from their Secret, and seals values with them.
package keyring

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/signin/keys"
)

// Secret is the name of the Secret in the manager's namespace that holds the signing keys. Field is the entry in the
// Secret's data that contains them.
const (
	Secret = "drover-sign-in"
	Field  = "keys"
)

// Purposes of sealed values. A value that was sealed for one purpose cannot be opened for another.
const (
	PurposePage     = "page"
	PurposeCallback = "callback"
	PurposeCode     = "code"
	// PurposeDeviceCode is for device codes. PurposeBrowser is for the cookies of known browsers.
	PurposeDeviceCode = "device code"
	PurposeBrowser    = "device"
)

// Keys holds the keys from one version of the Secret. It is replaced when another key becomes active.
type Keys struct {
	// UID is the UID of the Secret. Recreating the Secret changes the UID and therefore ends all sessions.
	UID types.UID
	// Set holds all published keys. Active is the key that signs tokens.
	Set    keys.Set
	Active keys.Key
	// Sealing holds the secrets that are derived from the keys. Seal uses the first secret, which is derived from the
	// active key.
	Sealing [][]byte
	*sealer

	version string
}

// Keyring caches the decoded keys. It is safe for concurrent use.
type Keyring struct {
	reader client.Reader
	name   types.NamespacedName
	now    func() time.Time
	last   atomic.Pointer[Keys]
}

// New returns a Keyring that reads the Secret in a namespace from a cache.
func New(cache client.Reader, namespace string, now func() time.Time) *Keyring {
	return &Keyring{reader: cache, name: types.NamespacedName{Namespace: namespace, Name: Secret}, now: now}
}

// Current returns the keys from the cache. If the Secret does not exist, no token is valid. Deleting the Secret
// therefore ends all sessions.
func (k *Keyring) Current(ctx context.Context) (*Keys, error) {
	secret := &corev1.Secret{}
	if err := k.reader.Get(ctx, k.name, secret); err != nil {
		return nil, fmt.Errorf("read the keys that sign tokens: %w", err)
	}
	last := k.last.Load()
	if last == nil || last.version != secret.ResourceVersion {
		set, err := keys.Decode(secret.Data[Field])
		if err != nil {
			return nil, fmt.Errorf("read Secret %s: %w; delete it, and the manager creates another one", k.name, err)
		}
		last = &Keys{version: secret.ResourceVersion, UID: secret.UID, Set: set}
	}
	active, err := last.Set.Active(k.now())
	if err != nil {
		return nil, err
	}
	if active.ID == last.Active.ID {
		return last, nil
	}
	next := &Keys{version: last.version, UID: last.UID, Set: last.Set, Active: active}
	if next.Sealing, err = next.Set.Sealing(active); err != nil {
		return nil, err
	}
	if next.sealer, err = newSealer(next.Sealing...); err != nil {
		return nil, err
	}
	k.last.Store(next)
	return next, nil
}
