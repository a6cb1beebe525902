// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/token"
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
	// keyKeys has the UID of the Secret with the keys: to delete that ends all sessions. keyPassword has the digest of the hash of the password that the user
	// signed in with, and keyRefresh what is kept of refresh tokens. Sessions without them have none.
	keyKeys     = "keys"
	keyPassword = "password"
	keyRefresh  = "refresh"
	// keyAwaited marks a session that a user has approved, and whose device has not asked for its tokens yet.
	keyAwaited = "awaited"
)

// Bounds are those of a session whose client asked for refresh tokens. All are needed.
type Bounds struct {
	// Idle is how long a refresh token that is not used is valid, and Lifetime how long a session is, from the login on.
	Idle, Lifetime time.Duration
}

// labelUser has the name of a session's User, or a digest of the principal.
const labelUser = v1.Group + "/user"

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=users;authproviders,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=secrets,verbs=delete

// keep stores what is kept of refresh tokens in a session, and when it ends then.
func keep(session *corev1.Secret, state refresh.State, until, now time.Time) error {
	raw, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("store a refresh token: %w", err)
	}
	if last := now.Add(token.Lifetime); last.After(until) {
		until = last
	}
	session.Data[keyRefresh], session.Data[keyEnds] = raw, []byte(until.UTC().Format(time.RFC3339))
	return nil
}

// kept returns what a session keeps of refresh tokens, and reports whether it has any.
func kept(session *corev1.Secret) (state refresh.State, ok bool) {
	raw := session.Data[keyRefresh]
	return state, len(raw) > 0 && json.Unmarshal(raw, &state) == nil
}

// until returns when a session that began at a time can no longer be refreshed.
func (b Bounds) until(begun, used time.Time) time.Time {
	idle, most := used.Add(b.Idle), begun.Add(b.Lifetime)
	if most.Before(idle) {
		return most
	}
	return idle
}

// Ends returns when the last token of a session ends, and with refresh tokens the session. One that says nothing has ended.
func Ends(session *corev1.Secret) time.Time {
	ends, direct := timeOf(session, keyEnds), timeOf(session, keyDirect)
	if ends.Before(direct) {
		return direct
	}
	return ends
}

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

// makeRoom removes sessions of a user for a new one: those that have ended, then those without refresh tokens, then the one that was not used for the longest
// time. One whose code could be redeemed again stays, so that a user who signs in too often has to wait. A login that begins before the cache has the one
// before it may leave one too many, which the next removes.
func (s *Server) makeRoom(ctx context.Context, next *corev1.Secret) error {
	var sessions corev1.SecretList
	user := next.Labels[labelUser]
	if err := s.client.List(ctx, &sessions, client.InNamespace(s.namespace),
		client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession, labelUser: user}); err != nil {
		return fmt.Errorf("list sessions of user %s: %w", user, err)
	}
	surplus := len(sessions.Items) + 1 - maxSessions
	if surplus <= 0 {
		return nil
	}
	others := s.removable(sessions.Items)
	if len(others) < surplus {
		return &later{replay, protocolError{tooMany, fmt.Sprintf("user %s has begun %d sessions within %s, or has tokens for direct access of as many; wait for so long", user, maxSessions, replay)}}
	}
	for i := range surplus {
		if err := s.client.Delete(ctx, &others[i], client.Preconditions{UID: &others[i].UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove the oldest session of user %s: %w", user, err)
		}
	}
	return nil
}

// removable returns those of a user's sessions that need not tell that their code was redeemed, or members that they were ended, in the order in which they give way.
func (s *Server) removable(all []corev1.Secret) []corev1.Secret {
	now := s.now()
	class := func(session *corev1.Secret) (int, time.Time) {
		state, lasts := kept(session)
		switch {
		case len(session.Data[keyRevoked]) > 0 || now.After(Ends(session)):
			return 0, timeOf(session, keyBegun)
		case !lasts:
			return 1, timeOf(session, keyBegun)
		}
		return 2, state.Used
	}
	others := slices.DeleteFunc(slices.Clone(all), func(one corev1.Secret) bool {
		return now.Sub(timeOf(&one, keyBegun)) < replay || now.Before(timeOf(&one, keyDirect)) // without it members would not learn that it was ended
	})
	slices.SortFunc(others, func(a, b corev1.Secret) int {
		classA, timeA := class(&a)
		classB, timeB := class(&b)
		return cmp.Or(cmp.Compare(classA, classB), timeA.Compare(timeB), cmp.Compare(a.Name, b.Name))
	})
	return others
}
