// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/apitoken"
	"github.com/drover-dev/drover/internal/signin/token"
)

// errStanding means that a user is disabled, gone, or another one than they were.
var errStanding = errors.New("the user is disabled or no longer exists")

// verified is a token whose signature was verified with one key.
type verified struct {
	token.Claims
	key string
	// groups are those of the claims, as a session has them.
	groups []byte
}

// Authenticate returns what identifies the senders of requests: those with a token of this issuer or of an AuthProvider of workloads here, and all others by next. These
// never come to next: a TokenReview would give its user another name.
func (s *Server) Authenticate(next func(*http.Request) (identity.Identity, error)) func(*http.Request) (identity.Identity, error) {
	return func(r *http.Request) (identity.Identity, error) {
		raw, err := identity.Token(r)
		if err != nil {
			return identity.Identity{}, err
		}
		if apitoken.Is(raw) {
			return s.byToken(r, raw)
		}
		sum := sha256.Sum256([]byte(raw))
		if _, known := s.verified.Get(sum); !known && !token.IssuedBy(raw, s.issuer) {
			if id, ours, err := s.byWorkload(r, raw, sum); ours {
				return id, err
			}
			return next(r)
		}
		v, err := s.verify(r.Context(), raw, sum)
		if err == nil {
			err = s.reaches(r, v.cluster())
		}
		if err != nil {
			return identity.Identity{}, err
		}
		return s.identify(r.Context(), v)
	}
}

// verify returns the claims of a token with that digest, which a key of this issuer has signed. It may be good for one cluster only.
func (s *Server) verify(ctx context.Context, raw string, sum [sha256.Size]byte) (verified, error) {
	current, err := s.keys(ctx)
	if apierrors.IsNotFound(err) {
		return verified{}, refusal.Unauthorized("the hub has no keys to check tokens with; sign in again").Because(err)
	} else if err != nil {
		return verified{}, refusal.Unavailable("the hub cannot check the token at the moment; try again").Because(err)
	}
	if known, ok := s.verified.Get(sum); ok {
		if known := known.(verified); mayStay(current, known) { // only verified is ever added
			return known, nil
		}
		s.verified.Remove(sum)
	}
	claims, key, err := token.Verify(raw, current.set, s.issuer, lifetimeAtHub)
	if err != nil {
		return verified{}, refusal.Unauthorized("the hub does not accept the token; sign in again").Because(err)
	}
	fresh := verified{claims, key, encode(claims.Groups)}
	if left := claims.Expiry.Time().Sub(s.now()); left > 0 {
		s.verified.Add(sum, fresh, left)
	}
	return fresh, nil
}

// mayStay reports whether the key that verified a token is still published.
func mayStay(current *loaded, v verified) bool {
	_, published := current.set.Public(v.key)
	return published
}

// identify returns the user of a token, if it is valid now, and they and their session are in good standing.
func (s *Server) identify(ctx context.Context, v verified) (identity.Identity, error) {
	if err := v.Current(s.now()); err != nil {
		groups, ended := s.inSession(ctx, v)
		switch { // of what ends also what began before the token expired
		case errors.Is(ended, identity.ErrEnded):
			return identity.Identity{}, ended
		case ended == nil && len(groups) < len(v.Groups):
			return identity.Identity{}, refusal.Unauthorized("the user is in fewer groups than when the token was given").Because(identity.ErrEnded)
		}
		return identity.Identity{}, refusal.Unauthorized("the token has expired; sign in again").Because(err)
	}
	id, err := identity.Principal(v.Subject, v.UID, v.Groups...)
	if err != nil {
		return identity.Identity{}, refusal.Unauthorized("the token's user has a name that the hub can't pass on").Because(err)
	}
	if err := s.admit(ctx, id); err != nil {
		return identity.Identity{}, err
	}
	groups, err := s.inSession(ctx, v)
	if err != nil || len(groups) == len(v.Groups) {
		return id, err
	}
	return identity.Principal(v.Subject, v.UID, groups...)
}

// inSession returns those groups of a token that its session still has: a refresh may have found fewer. It refuses a token whose session was revoked or removed.
func (s *Server) inSession(ctx context.Context, v verified) ([]string, error) {
	session, name := &corev1.Secret{}, s.name(SessionPrefix+v.Session)
	err := s.client.Get(ctx, name, session)
	if apierrors.IsNotFound(err) && s.now().Sub(v.IssuedAt.Time()) < settle { // the cache of this replica may not have it yet
		err = s.live.Get(ctx, name, session)
	}
	ended := refusal.Unauthorized("the session was ended; sign in again")
	switch {
	case err == nil && len(session.Data[keyRevoked]) > 0:
		return nil, ended.Because(identity.ErrEnded)
	case apierrors.IsNotFound(err) && !strings.HasPrefix(v.Subject, v1.PrincipalPrefixLocal):
		return nil, ended.Because(identity.ErrEnded) // the provider is not asked about the user again: a request that is open would go on for good
	case apierrors.IsNotFound(err), err == nil && (string(session.Data[keyUID]) != v.UID || principalOf(session) != v.Subject):
		return nil, ended
	case err != nil:
		return nil, refusal.Unavailable("the hub cannot check the session at the moment; try again").Because(err)
	case len(session.Data[keyProvider]) > 0:
		return s.ofProvider(ctx, session, v)
	}
	return v.Groups, nil
}

// ofProvider returns those groups of a token that its session still has. It refuses a session of a provider that was deleted and made again.
func (s *Server) ofProvider(ctx context.Context, session *corev1.Secret, v verified) ([]string, error) {
	p, err := s.provider(ctx, s.client, string(session.Data[keyProvider]))
	switch {
	case errors.Is(err, errStanding), err == nil && string(p.UID) != string(session.Data[keyProviderUID]):
		return nil, refusal.Unauthorized("the session was ended; sign in again").Because(identity.ErrEnded)
	case err != nil:
		return nil, refusal.Unavailable("the hub cannot look up the user's provider at the moment; try again").Because(err)
	case len(v.Groups) == 0, bytes.Equal(v.groups, session.Data[keyGroups]):
		return v.Groups, nil
	}
	kept, err := groupsOf(session)
	if err != nil {
		return nil, refusal.Unauthorized("the session is damaged; sign in again").Because(err)
	}
	return slices.DeleteFunc(slices.Clone(v.Groups), func(group string) bool { return !slices.Contains(kept, group) }), nil
}

// Authorize returns what admits users to members: next, for users who are not disabled. A request that is open outlives its token, and not its user.
func (s *Server) Authorize(next func(context.Context, identity.Identity, types.NamespacedName) error) func(context.Context, identity.Identity, types.NamespacedName) error {
	return func(ctx context.Context, id identity.Identity, cluster types.NamespacedName) error {
		if !strings.HasPrefix(id.User, identity.HubPrefix) {
			if err := s.admit(ctx, id); err != nil {
				return err
			}
		}
		return next(ctx, id, cluster)
	}
}

// admit refuses a principal who is not in good standing.
func (s *Server) admit(ctx context.Context, id identity.Identity) error {
	provider, name, _ := strings.Cut(id.User, ":")
	var err error
	if provider == local {
		_, err = s.standing(ctx, s.client, name, id.UID)
	} else if _, err = s.provider(ctx, s.client, provider); err == nil {
		err = s.notSwitchedOff(ctx, id.User)
	}
	switch {
	case errors.Is(err, errStanding):
		return refusal.Unauthorized("the user " + id.User + " or their provider is disabled or no longer exists; ask an administrator of the hub")
	case err != nil:
		return refusal.Unavailable("the hub cannot look up the user at the moment; try again").Because(err)
	}
	return nil
}

// standing returns a User who is there with that UID and not disabled, as the cache or the API server has them.
func (s *Server) standing(ctx context.Context, from client.Reader, name, uid string) (*v1.User, error) {
	user := &v1.User{}
	if err := from.Get(ctx, types.NamespacedName{Name: name}, user); apierrors.IsNotFound(err) {
		return nil, errStanding
	} else if err != nil {
		return nil, err
	}
	if user.Spec.Disabled || user.Spec.Principal != "" || string(user.UID) != uid || !user.DeletionTimestamp.IsZero() {
		return nil, errStanding
	}
	return user, nil
}
