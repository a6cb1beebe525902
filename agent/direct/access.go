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
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/signin/token"
)

const (
	// maxAccess bounds what the hub delivers, in bytes.
	maxAccess = 1 << 20
	// maxVerified bounds the tokens whose signature is remembered.
	maxVerified = 1024
	// maxGroups bounds the groups of a user: each is a header. The issuer puts 6 KiB of them into a token, and the
	// shortest takes six bytes there.
	maxGroups = 1024
)

// Reasons to refuse every token, whatever is in it.
var (
	errOff    = errors.New("the cluster has no direct access")
	errTooOld = errors.New("the keys and the list of ended sessions that this cluster has are too old, since its agent did not reach the hub; come by way of the hub")
	errAll    = errors.New("the hub has ended more sessions than the list has room for; come by way of the hub")
)

// access is what tokens are verified by. It does not change.
type access struct {
	protocol.DirectAccess
	keys     token.Published
	denied   map[string]struct{}
	verified *cache.LRUExpireCache // of known, by the digest of the token: new keys or a new list begin with none
}

// known is a token whose signature was verified.
type known struct {
	token.Claims
	key string
}

// parse reads what the hub delivers. Its errors hold nothing of it.
func parse(secret *corev1.Secret) (*access, error) {
	a := &access{denied: map[string]struct{}{}, verified: cache.NewLRUExpireCache(maxVerified)}
	raw := secret.Data[protocol.DirectKey]
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields() // what a newer hub adds may refuse more
	if len(raw) > maxAccess || decoder.Decode(&a.DirectAccess) != nil {
		return nil, errors.New("it is malformed, or of a hub of another version")
	}
	lifetime := time.Duration(a.Lifetime) * time.Second
	if a.Mode != "" && a.Mode != string(v1.AuthorizedEndpointAPIServer) {
		return nil, errors.New("it is for another way than an agent knows")
	}
	if a.Issuer == "" || a.Audience == "" || a.Host == "" || a.ValidUntil.IsZero() || a.Lifetime <= 0 ||
		lifetime > token.LongestDirect || len(a.Denied) > protocol.MaxDenied {
		return nil, errors.New("it is not whole, or beyond its bounds")
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

// byAPIServer reports whether users reach the member's own API server.
func (a *access) byAPIServer() bool { return a.Mode != "" }

// usable reports why no token at all is accepted at a time; nil if some may be.
func (a *access) usable(now time.Time) error {
	switch {
	case !now.Before(a.ValidUntil):
		return errTooOld
	case a.DenyAll:
		return errAll
	}
	return nil
}

// unusable reports whether a token was refused for what there is to verify it by, and not for what it is.
func unusable(err error) bool {
	return errors.Is(err, errTooOld) || errors.Is(err, errAll) || errors.Is(err, errOff)
}

// stands reports why no token, or none of a session that a key has signed, is accepted at a time; nil if it is.
func (a *access) stands(k known, now time.Time) error {
	_, published := a.keys.Public(k.key)
	_, denied := a.denied[k.Session]
	if err := a.usable(now); err != nil {
		return err
	}
	switch {
	case !published:
		return fmt.Errorf("%w: its key is none of the issuer's", token.ErrToken)
	case denied:
		return fmt.Errorf("%w: its session was ended, or its user may not sign in any more", token.ErrToken)
	}
	return nil
}

// verify returns whose a token is, if it is valid at a time.
func (a *access) verify(raw string, now time.Time) (known, error) {
	if err := a.usable(now); err != nil {
		return known{}, err
	}
	sum := sha256.Sum256([]byte(raw))
	k, before := known{}, false
	if found, ok := a.verified.Get(sum); ok {
		k, before = found.(known), true // only known is ever added
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

// principal checks the names of a token as the hub did: it signs none that has a user or group of another form, and the
// agent could act as any.
func principal(c token.Claims) error {
	provider, user, found := strings.Cut(c.Subject, ":")
	of := func(group string) bool {
		return len(group) > len(provider)+1 && strings.HasPrefix(group, provider+":") && plain(group)
	}
	switch {
	case !found || provider == "" || user == "" || slices.Contains([]string{"hub", "system", "kubeadm", "eks"}, provider),
		!plain(c.Subject), !plain(c.UID):
		return fmt.Errorf("%w: its user is no principal, <provider>:<name>", token.ErrToken)
	case len(c.Groups) > maxGroups:
		return fmt.Errorf("%w: it names %d groups, and %d are accepted", token.ErrToken, len(c.Groups), maxGroups)
	case slices.ContainsFunc(c.Groups, func(group string) bool { return !of(group) }):
		return fmt.Errorf("%w: its groups are not of the user's provider", token.ErrToken)
	}
	return nil
}

// plain reports whether a name arrives unchanged as the value of a header.
func plain(name string) bool {
	return name != "" && name == strings.TrimSpace(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f })
}
