// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Keys of the Secret that holds a State. ca.crt is the bundle, for whoever needs to trust the hub; nothing reads it back.
const (
	keyBundle     = "ca.crt"
	keyActiveCert = "active.crt"
	keyActiveKey  = "active.key"
	keyBridges    = "cross-signed.crt"
	keyOld        = "old.crt"
	keyChanged    = "changed"
)

// ReadSecret reads the state that WriteSecret wrote. A Secret without data is the empty state.
func ReadSecret(secret *corev1.Secret) (State, error) {
	state := State{
		Active:  KeyPair{Cert: secret.Data[keyActiveCert], Key: secret.Data[keyActiveKey]},
		Bridges: secret.Data[keyBridges],
		Old:     secret.Data[keyOld],
	}
	if raw := secret.Data[keyChanged]; len(raw) > 0 {
		changed, err := time.Parse(time.RFC3339, string(raw))
		if err != nil {
			return State{}, fmt.Errorf("secret %s/%s: %s: %w", secret.Namespace, secret.Name, keyChanged, err)
		}
		state.Changed = changed
	}
	return state, nil
}

// WriteSecret puts a state into a Secret's data.
func WriteSecret(secret *corev1.Secret, s State) {
	secret.Type = corev1.SecretTypeOpaque
	secret.Data = map[string][]byte{keyBundle: s.Bundle()}
	for key, value := range map[string][]byte{
		keyActiveCert: s.Active.Cert, keyActiveKey: s.Active.Key, keyBridges: s.Bridges, keyOld: s.Old,
	} {
		if len(value) > 0 {
			secret.Data[key] = value
		}
	}
	if !s.Changed.IsZero() {
		secret.Data[keyChanged] = []byte(s.Changed.UTC().Format(time.RFC3339))
	}
}
