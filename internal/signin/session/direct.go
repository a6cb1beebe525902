// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/oauth"
)

// directMargin is added to the expiry time of a direct-access token before the time is recorded, so that repeated
// requests from a client cause few writes.
const directMargin = 10 * time.Minute

// NoteDirect records that a session has a token for direct access until the given time. It also removes the owner
// reference of the session's Secret, so that the Secret is not deleted together with its User or AuthProvider.
func (s *Store) NoteDirect(ctx context.Context, session Session, until time.Time) error {
	if !session.Direct().Before(until) && len(session.OwnerReferences) == 0 && !session.Revoked() {
		return nil
	}
	note := base64.StdEncoding.EncodeToString(stamp(until.Add(directMargin)))
	written := Session{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: session.Namespace, Name: session.Name}}}
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": session.Secret.UID, "ownerReferences": nil},
		"data":     map[string]string{KeyDirect: note},
	})
	if err != nil {
		return fmt.Errorf("note direct access in session %s: %w", session.Name, err)
	}
	err = s.client.Patch(ctx, written.Secret, client.RawPatch(types.MergePatchType, raw))
	if apierrors.IsNotFound(err) || err == nil && written.Revoked() {
		return oauth.Invalid("subject_token: the session has ended; sign in again")
	} else if err != nil {
		return fmt.Errorf("note direct access in session %s: %w", session.Name, err)
	}
	return nil
}

// IsDirect reports whether an object is a session with tokens for direct access.
func (s *Store) IsDirect(o client.Object) bool {
	secret, ok := o.(*corev1.Secret)
	return ok && secret.Namespace == s.namespace && secret.Labels[v1.LabelSecretKind] == v1.SecretKindSession &&
		len(secret.Data[KeyDirect]) > 0
}

// Restore recreates a deleted session as a revoked session, so that members are notified that the session has ended.
// Members might otherwise still accept its tokens.
func (s *Store) Restore(ctx context.Context, deleted Session) error {
	data := map[string][]byte{KeyRevoked: []byte("true")}
	for _, key := range []string{KeyUID, KeyBegun, KeyEnds, KeyPrincipal, KeyProvider, KeyProviderUID, KeyDirect} {
		if value, has := deleted.Data[key]; has {
			data[key] = value
		}
	}
	again := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: deleted.Namespace, Name: deleted.Name, Labels: deleted.Labels},
		Type:       deleted.Type,
		Data:       data,
	}
	if err := s.client.Create(ctx, again); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("tell members that session %s was deleted: %w", deleted.Name, err)
	}
	return nil
}

// All returns all sessions in the cache. Callers must not modify them.
func (s *Store) All(ctx context.Context) ([]Session, error) {
	var list corev1.SecretList
	if err := s.client.List(ctx, &list, client.InNamespace(s.namespace),
		client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	all := make([]Session, len(list.Items))
	for i := range list.Items {
		all[i] = Session{&list.Items[i]}
	}
	return all, nil
}
