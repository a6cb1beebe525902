// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// SessionPrefix precedes the ID of a session in the name of its Secret.
const SessionPrefix = "drover-session-"

// maxSessions bounds those of one user: a script that signs in again and again leaves no more.
const maxSessions = 16

// settle is how long the cache of a replica may not have a session that was begun at another one.
const settle = time.Minute

// replay is how long a session must stay to tell that its code was redeemed, whatever the clocks of replicas.
const replay = 2 * codeLifetime

// Keys of a session's Secret.
const (
	keyUID     = "uid"
	keyBegun   = "begun"
	keyEnds    = "ends"
	keyRevoked = "revoked"
)

// labelUser has the name of a session's User.
const labelUser = v1.Group + "/user"

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=users,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=secrets,verbs=delete

// newSession is the Secret of a session. It goes with its User.
func newSession(name types.NamespacedName, user *v1.User, now, ends time.Time) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name,
			Labels:          map[string]string{v1.LabelSecretKind: v1.SecretKindSession, v1.LabelManagedBy: v1.ManagedBy, labelUser: user.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "User", Name: user.Name, UID: user.UID}},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{keyUID: []byte(user.UID), keyBegun: []byte(now.UTC().Format(time.RFC3339)), keyEnds: []byte(ends.UTC().Format(time.RFC3339))},
	}
}

// Ends returns when the last token of a session ends. One that says nothing has ended.
func Ends(session *corev1.Secret) time.Time { return timeOf(session, keyEnds) }

func timeOf(session *corev1.Secret, key string) time.Time {
	at, err := time.Parse(time.RFC3339, string(session.Data[key]))
	if err != nil {
		return time.Time{}
	}
	return at
}

// revoke ends a session at once. It stays until its tokens have ended, so that its code begins no other.
func (s *Server) revoke(ctx context.Context, id string) error {
	session := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: SessionPrefix + id}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"`+keyRevoked+`":"dHJ1ZQ=="}}`)) // true
	if err := s.client.Patch(ctx, session, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("revoke session %s: %w", id, err)
	}
	return nil
}

// makeRoom removes the oldest sessions of a user for a new one. One whose code could be redeemed again stays, so that a user who signs in too often has
// to wait. A login that begins before the cache has the one before it may leave one too many, which the next removes.
func (s *Server) makeRoom(ctx context.Context, next *corev1.Secret) error {
	var sessions corev1.SecretList
	user := next.Labels[labelUser]
	if err := s.client.List(ctx, &sessions, client.InNamespace(s.namespace),
		client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession, labelUser: user}); err != nil {
		return fmt.Errorf("list sessions of user %s: %w", user, err)
	}
	others := sessions.Items
	slices.SortFunc(others, func(a, b corev1.Secret) int {
		return cmp.Or(timeOf(&a, keyBegun).Compare(timeOf(&b, keyBegun)), cmp.Compare(a.Name, b.Name))
	})
	for i := range max(0, len(others)+1-maxSessions) {
		if s.now().Sub(timeOf(&others[i], keyBegun)) < replay {
			return &protocolError{tooMany, fmt.Sprintf("user %s has begun %d sessions within %s; wait for so long", user, maxSessions, replay)}
		}
		if err := s.client.Delete(ctx, &others[i], client.Preconditions{UID: &others[i].UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove the oldest session of user %s: %w", user, err)
		}
	}
	return nil
}
