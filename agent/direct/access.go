// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/signin/token"
)

const (
	// maxAccess is the maximum size, in bytes, of the direct-access data that the hub delivers.
	maxAccess = 1 << 20
	// maxVerified is the maximum number of verified tokens that are cached.
	maxVerified = 1024
	// maxGroups is the maximum number of groups that a user can have. Each group becomes a header in forwarded
	// requests. No token exceeds this limit, because the issuer puts at most 6 KiB of groups into a token, and the
	// shortest group takes six bytes.
	maxGroups = 1024
)

// These errors are reasons to refuse all tokens, regardless of their content.
var (
	errOff    = errors.New("the cluster has no direct access")
	errTooOld = errors.New("this cluster's keys and its list of ended sessions are too old, because its agent did not " +
		"reach the hub: use the hub's address instead")
	errAll = errors.New("the hub has ended more sessions than the list has room for: use the hub's address instead")
)

// access holds the data for verifying tokens. It is immutable.
type access struct {
	protocol.DirectAccess
	keys   token.Published
	denied map[string]struct{}
	// verified maps the digests of verified tokens to values of type known. It is emptied when the hub delivers new
	// keys or a new list of ended sessions.
	verified *cache.LRUExpireCache
}

// known is a token whose signature has been verified.
type known struct {
	token.Claims
	key string
}

// parse decodes the direct-access data that the hub has delivered. Its errors do not reveal the data.
func parse(secret *corev1.Secret) (*access, error) {
	a := &access{denied: map[string]struct{}{}, verified: cache.NewLRUExpireCache(maxVerified)}
	raw := secret.Data[protocol.DirectKey]
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields() // a field from a newer hub may require that more tokens be rejected
	if len(raw) > maxAccess || decoder.Decode(&a.DirectAccess) != nil {
		return nil, errors.New("it is malformed, or from a hub of another version")
	}
	lifetime := time.Duration(a.Lifetime) * time.Second
	if a.Mode != "" && a.Mode != string(v1.AuthorizedEndpointAPIServer) {
		return nil, errors.New("it has a mode of direct access that this agent does not know")
	}
	if a.Issuer == "" || a.Audience == "" || a.Host == "" || a.ValidUntil.IsZero() || a.Lifetime <= 0 ||
		lifetime > token.LongestDirect || len(a.Denied) > protocol.MaxDenied {
		return nil, errors.New("it is incomplete or exceeds a limit")
	}
	var err error
	if a.keys, err = token.ParsePublished(a.Keys); err != nil {
		return nil, err
	}
	for _, session := range a.Denied {
		a.denied[session] = struct{}{}
	}
	return a, nil
}

// byAPIServer reports whether users connect directly to the member's own API server.
func (a *access) byAPIServer() bool { return a.Mode != "" }

// usable returns nil if tokens can be accepted at the given time. Otherwise, the error is the reason why all tokens are
// refused.
func (a *access) usable(now time.Time) error {
	switch {
	case !now.Before(a.ValidUntil):
		return errTooOld
	case a.DenyAll:
		return errAll
	}
	return nil
}

// unusable reports whether err means that all tokens are refused, rather than only one of them.
func unusable(err error) bool {
	return errors.Is(err, errTooOld) || errors.Is(err, errAll) || errors.Is(err, errOff)
}

// stands returns the reason why a verified token is not accepted at the given time, or nil if it is accepted. A token
// is not accepted if all tokens are refused, if the issuer no longer publishes the token's key, or if the session of
// the token has ended.
func (a *access) stands(k known, now time.Time) error {
	_, published := a.keys.Public(k.key)
	_, denied := a.denied[k.Session]
	if err := a.usable(now); err != nil {
		return err
	}
	switch {
	case !published:
		return fmt.Errorf("%w: its key is not one of the issuer's keys", token.ErrToken)
	case denied:
		return fmt.Errorf("%w: its session was ended, or its user may no longer sign in", token.ErrToken)
	}
	return nil
}

// verify returns the claims of a token that is valid at the given time.
func (a *access) verify(raw string, now time.Time) (known, error) {
	if err := a.usable(now); err != nil {
		return known{}, err
	}
	sum := sha256.Sum256([]byte(raw))
	k, before := known{}, false
	if found, ok := a.verified.Get(sum); ok {
		k, before = found.(known), true // the cache contains only values of type known
	}
	if !before {
		claims, key, err := token.Verify(raw, a.keys, a.Issuer, a.lifetime)
		if err != nil {
			return known{}, err
		}
		if err := principal(claims); err != nil {
			return known{}, err
		}
		k = known{claims, key}
	}
	if err := k.Current(now); err != nil {
		return known{}, err
	}
	if err := a.stands(k, now); err != nil {
		return known{}, err
	}
	if !before {
		a.verified.Add(sum, k, k.Expiry.Time().Sub(now))
	}
	return k, nil
}

func (a *access) lifetime(audience string) time.Duration {
	if audience != a.Audience {
		return 0
	}
	return time.Duration(a.Lifetime) * time.Second
}

// principal checks the user and group names in a token in the same way as the hub does. The hub does not sign tokens
// with invalid names, but the check is repeated because the agent can impersonate any user.
func principal(c token.Claims) error {
	provider, user, found := strings.Cut(c.Subject, ":")
	of := func(group string) bool {
		return len(group) > len(provider)+1 && strings.HasPrefix(group, provider+":") && plain(group)
	}
	switch {
	case !found || provider == "" || user == "" || slices.Contains([]string{"hub", "system", "kubeadm", "eks"}, provider),
		!plain(c.Subject), !plain(c.UID), baseline.IsUser(c.Subject):
		return fmt.Errorf("%w: its user is not a principal of the form <provider>:<name>", token.ErrToken)
	case len(c.Groups) > maxGroups:
		return fmt.Errorf("%w: it names %d groups, but at most %d are accepted", token.ErrToken, len(c.Groups), maxGroups)
	case slices.ContainsFunc(c.Groups, func(group string) bool { return !of(group) }):
		return fmt.Errorf("%w: it has a group of another provider than the user's", token.ErrToken)
	}
	return nil
}

// plain reports whether a name can be transmitted unchanged as a header value.
func plain(name string) bool {
	return name != "" && name == strings.TrimSpace(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f })
}
