// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/quietlog"
	"github.com/drover-dev/drover/internal/signin/refresh"
)

const (
	// maxSessions is the maximum number of sessions per user. It limits the effect of scripts that sign in repeatedly.
	maxSessions = 16
	// Settle is how long it may take until a new session appears in the caches of all replicas.
	Settle = time.Minute
	// WriteLimit is the time limit for writes that start or refresh a session.
	WriteLimit = 10 * time.Second
	// CodeLifetime is the lifetime of an authorization code.
	CodeLifetime = time.Minute
	// replay is the minimum time for which a session is kept to show that its code has been redeemed. It is longer than
	// CodeLifetime, because the clocks of replicas may differ.
	replay = 2 * CodeLifetime
	// unseenPerSecond limits how often clients can cause reads from the API server by asking for sessions that are not
	// in the cache.
	unseenPerSecond = 20
)

// ErrRefresh is returned for every problem with a refresh token, so that it reveals no details.
var ErrRefresh error = &oauth.Error{Code: "invalid_grant", Description: "the refresh token is not valid, has expired " +
	"or was used before, or its user may not sign in; sign in again"}

// ErrBusy is returned if clients ask for too many sessions that are not in the cache.
var ErrBusy = errors.New("too many clients ask for sessions that are in no cache")

// Code is the content of an authorization code. A login page issues the code, and the token endpoint redeems it. The
// code is sealed. No object is stored until the code is redeemed.
type Code struct {
	account.Claims
	// ID is the ID of the session that starts when the code is redeemed.
	ID        string    `json:"i"`
	Redirect  string    `json:"r"`
	Nonce     string    `json:"n"`
	Challenge string    `json:"c"`
	At        time.Time `json:"t"`
	// Offline reports whether the session has refresh tokens.
	Offline bool `json:"o,omitempty"`
}

// Bounds are the time limits for sessions with refresh tokens. All fields are required.
type Bounds struct {
	// Idle is the lifetime of an unused refresh token. Lifetime is the maximum duration of a session after the login.
	Idle, Lifetime time.Duration
}

// until returns the time when the session's refresh tokens expire.
func (b Bounds) until(begun, used time.Time) time.Time {
	idle, most := used.Add(b.Idle), begun.Add(b.Lifetime)
	if most.Before(idle) {
		return most
	}
	return idle
}

// +kubebuilder:rbac:groups="",namespace=drover-system,resources=secrets,verbs=delete

// Store reads and writes sessions. It is safe for concurrent use.
type Store struct {
	Bounds
	// client reads from a cache, and live reads from the API server.
	client    client.Client
	live      client.Reader
	namespace string
	now       func() time.Time
	log       *quietlog.Log
	unseen    *rate.Limiter
}

// NewStore returns a Store for the sessions in a namespace.
func NewStore(
	cache client.Client, live client.Reader, namespace string, bounds Bounds, now func() time.Time, log *quietlog.Log,
) *Store {
	return &Store{
		Bounds: bounds, client: cache, live: live, namespace: namespace, now: now, log: log,
		unseen: rate.NewLimiter(unseenPerSecond, unseenPerSecond),
	}
}

func (s *Store) name(id string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.namespace, Name: Prefix + id}
}

// New returns a new session without storing it.
func (s *Store) New(id string, c account.Claims, begun, ends time.Time) Session {
	return Session{NewSecret(s.name(id), c, begun, ends)}
}

// Cached returns a session from the cache.
func (s *Store) Cached(ctx context.Context, id string) (Session, error) {
	session := Session{&corev1.Secret{}}
	return session, s.client.Get(ctx, s.name(id), session.Secret)
}

// Of returns the sessions of a user that have not ended, newest first, from the cache.
func (s *Store) Of(ctx context.Context, principal, uid string) ([]Session, error) {
	var list corev1.SecretList
	if err := s.client.List(ctx, &list, client.InNamespace(s.namespace),
		client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession, LabelUser: labelOf(principal)}); err != nil {
		return nil, fmt.Errorf("list sessions of %s: %w", principal, err)
	}
	var all []Session
	for i := range list.Items {
		if one := (Session{&list.Items[i]}); one.Open(principal, uid, s.now()) {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b Session) int {
		return cmp.Or(b.Began().Compare(a.Began()), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Live returns a session from the API server.
func (s *Store) Live(ctx context.Context, id string) (Session, error) {
	session := Session{&corev1.Secret{}}
	return session, s.live.Get(ctx, s.name(id), session.Secret)
}

// Find returns a session from the cache, or from the API server if the session is not in the cache. It returns ErrBusy
// instead if clients cause too many reads from the API server.
func (s *Store) Find(ctx context.Context, id string) (Session, error) {
	session, err := s.Cached(ctx, id)
	if apierrors.IsNotFound(err) { // another replica may have just started the session
		if !s.unseen.AllowN(s.now(), 1) {
			return Session{}, ErrBusy
		}
		return s.Live(ctx, id)
	}
	return session, err
}

// Given returns the session of a refresh token. It returns ErrRefresh if the token does not belong to a session.
func (s *Store) Given(ctx context.Context, given refresh.Token) (Session, error) {
	session, err := s.Find(ctx, given.Session)
	if apierrors.IsNotFound(err) {
		return Session{}, ErrRefresh
	} else if err != nil {
		return Session{}, fmt.Errorf("read session %s: %w", given.Session, err)
	}
	if state, ok := session.Refresh(); !ok || !state.Given(given) {
		return Session{}, ErrRefresh // a session ID alone must not be sufficient to end a session
	}
	return session, nil
}

// Store creates the Secret of a new session. If the user has too many sessions, Store first deletes older ones.
func (s *Store) Store(ctx context.Context, session Session) error {
	if err := s.makeRoom(ctx, session); err != nil {
		return err
	}
	return s.client.Create(ctx, session.Secret)
}

// Save writes a session that was read from the API server. It returns a conflict error if the session has changed in
// the meantime.
func (s *Store) Save(ctx context.Context, session Session) error {
	return s.client.Update(ctx, session.Secret)
}

// GiveRefresh adds the first refresh token to a session, and returns the token.
func (s *Store) GiveRefresh(session Session) (string, error) {
	now := s.now()
	given, state := refresh.New(session.ID(), now)
	return given.String(), session.setRefresh(state, s.until(session.Began(), now), now)
}

// KeepRefresh stores the state of the refresh tokens in a session.
func (s *Store) KeepRefresh(session Session, state refresh.State) error {
	return session.setRefresh(state, s.until(session.Began(), state.Used), s.now())
}

// Refreshable reports whether a session can still be refreshed. state is the state of its refresh tokens.
func (s *Store) Refreshable(session Session, state refresh.State) bool {
	return s.now().Before(s.until(session.Began(), state.Used))
}

// Revoke ends a session immediately. It does not delete the Secret, because the session's code could then start another
// session. The Secret is deleted when the session's tokens have expired.
func (s *Store) Revoke(ctx context.Context, id string) error {
	name := s.name(id)
	session := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"`+KeyRevoked+`":"dHJ1ZQ=="}}`)) // base64 of "true"
	if err := s.client.Patch(ctx, session, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("revoke session %s: %w", id, err)
	}
	return nil
}

// makeRoom deletes sessions of a user to make room for a new one. It first deletes sessions that have ended, then
// sessions without refresh tokens, and then the sessions that have been unused for the longest time. It keeps sessions
// whose code could be redeemed again, so a user who signs in too often has to wait. If a login starts before the
// previous session is in the cache, one extra session may remain until the next login.
func (s *Store) makeRoom(ctx context.Context, next Session) error {
	var sessions corev1.SecretList
	user := next.User()
	if err := s.client.List(ctx, &sessions, client.InNamespace(s.namespace),
		client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession, LabelUser: user}); err != nil {
		return fmt.Errorf("list sessions of user %s: %w", user, err)
	}
	surplus := len(sessions.Items) + 1 - maxSessions
	if surplus <= 0 {
		return nil
	}
	others := removable(sessions.Items, s.now())
	if len(others) < surplus {
		return &oauth.Later{After: replay, Err: oauth.Error{Code: oauth.TooMany, Description: fmt.Sprintf(
			"user %s has started %d sessions within %s, or has as many sessions with tokens for direct access; wait for that time",
			user, maxSessions, replay)}}
	}
	for i := range surplus {
		err := s.client.Delete(ctx, &others[i], client.Preconditions{UID: &others[i].UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("remove the oldest session of user %s: %w", user, err)
		}
	}
	return nil
}

// removable returns the sessions that can be deleted, in the order of their deletion. It omits sessions whose code
// could be redeemed again, and sessions whose tokens for direct access may still be valid.
func removable(all []corev1.Secret, now time.Time) []corev1.Secret {
	class := func(secret *corev1.Secret) (int, time.Time) {
		session := Session{secret}
		state, lasts := session.Refresh()
		switch {
		case session.Revoked() || now.After(session.Ends()):
			return 0, session.Began()
		case !lasts:
			return 1, session.Began()
		}
		return 2, state.Used
	}
	others := slices.DeleteFunc(slices.Clone(all), func(one corev1.Secret) bool {
		session := Session{&one}
		return now.Sub(session.Began()) < replay || now.Before(session.Direct())
	})
	slices.SortFunc(others, func(a, b corev1.Secret) int {
		classA, timeA := class(&a)
		classB, timeB := class(&b)
		return cmp.Or(cmp.Compare(classA, classB), timeA.Compare(timeB), cmp.Compare(a.Name, b.Name))
	})
	return others
}

const (
	// AskLimit limits how long a refresh waits for a session's provider.
	AskLimit = 6 * time.Second
	// askedFor is how long one request has the exclusive right to query a session's provider. The right expires so that
	// other replicas can query the provider if a replica stops during a query.
	askedFor = AskLimit + 2*time.Second
)

// ErrAsking means that another replica is querying the session's provider.
var ErrAsking = errors.New("another replica is querying the provider of the session")

// ClaimAsking gives this replica the exclusive right to query a session's provider. Without this right, two replicas
// could send the same refresh token, and a provider that rotates refresh tokens would treat the token as stolen. The
// session must have just been read from the API server. If another replica writes the session first, ClaimAsking
// returns a conflict error.
func (s *Store) ClaimAsking(ctx context.Context, session Session) error {
	now := s.now()
	if since := now.Sub(TimeOf(session.Secret, KeyAsking)); since < askedFor && since > -askedFor {
		return ErrAsking
	}
	session.Data[KeyAsking] = stamp(now)
	if err := s.client.Update(ctx, session.Secret); err != nil {
		return fmt.Errorf("write session %s: %w", session.Name, err)
	}
	return nil
}

// EndAsking releases the right from ClaimAsking after the provider has failed to respond. If the session cannot be
// written, other replicas have to wait for askedFor.
func (s *Store) EndAsking(ctx context.Context, session Session) {
	delete(session.Data, KeyAsking)
	if err := s.client.Update(ctx, session.Secret); err != nil {
		s.log.Complain(err, "session claimed for longer than its provider was queried")
	}
}
