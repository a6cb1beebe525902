// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Keys of the Secret that contains a State. ca.crt is the bundle for clients that need to trust the hub. The hub itself
// does not read ca.crt.
const (
	keyBundle     = "ca.crt"
	keyActiveCert = "active.crt"
	keyActiveKey  = "active.key"
	keyBridges    = "cross-signed.crt"
	keyOld        = "old.crt"
	keyChanged    = "changed"
	keyIdentity   = "identity"
)

// identityForm is the accepted format of a hub's identity.
var identityForm = regexp.MustCompile(`^drover-hub:[A-Za-z0-9-]{1,64}$`)

// Identity returns the identity for a hub. uid is the UID of the hub cluster's kube-system namespace when the authority
// is created.
func Identity(uid string) string { return "drover-hub:" + uid }

// Identify adds the hub's identity to a Secret that contains an authority but no identity, and reports whether it
// added the identity. Such a Secret was written by an earlier version.
func Identify(secret *corev1.Secret, identity string) bool {
	if len(secret.Data[keyActiveCert]) == 0 || len(secret.Data[keyIdentity]) > 0 {
		return false
	}
	secret.Data[keyIdentity] = []byte(identity)
	return true
}

// ReadSecret returns the state that WriteSecret has stored in a Secret. It returns an empty state if the Secret has
// no data.
func ReadSecret(secret *corev1.Secret) (State, error) {
	state := State{
		Identity: string(secret.Data[keyIdentity]),
		Active:   KeyPair{Cert: secret.Data[keyActiveCert], Key: secret.Data[keyActiveKey]},
		Bridges:  secret.Data[keyBridges],
		Old:      secret.Data[keyOld],
	}
	if state.Identity != "" && !identityForm.MatchString(state.Identity) {
		return State{}, fmt.Errorf("secret %s/%s: %s is not of the form drover-hub:<letters, digits, dashes>; "+
			"restore it from a backup, because agents identify the hub by it", secret.Namespace, secret.Name, keyIdentity)
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

// WriteSecret writes a state into the data of a Secret.
func WriteSecret(secret *corev1.Secret, s State) {
	secret.Type = corev1.SecretTypeOpaque
	secret.Data = map[string][]byte{keyBundle: s.Bundle()}
	for key, value := range map[string][]byte{
		keyActiveCert: s.Active.Cert, keyActiveKey: s.Active.Key, keyBridges: s.Bridges, keyOld: s.Old,
		keyIdentity: []byte(s.Identity),
	} {
		if len(value) > 0 {
			secret.Data[key] = value
		}
	}
	if !s.Changed.IsZero() {
		secret.Data[keyChanged] = []byte(s.Changed.UTC().Format(time.RFC3339))
	}
}
