// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/apitoken"
)

// TokenPrefix precedes the ID of a token for scripts in the name of its Secret.
const TokenPrefix = "drover-token-"

// Keys in the Secret of a token, beside those of a session.
const (
	keyHash        = "hash"
	keyDescription = "description"
	keyCluster     = "cluster"
	keyUsed        = "used"
)

const (
	// usedEvery is how coarsely the last use of a token is kept.
	usedEvery = time.Hour
	// usesPerSecond bounds the writes of last uses of one replica, and maxUses those that are remembered to have been written just now.
	usesPerSecond, maxUses = 1, 4096
	useTimeout             = 10 * time.Second
)

// credentialID is the extra field in which API servers say which credential a user has shown: audit logs have it, at the hub and in members.
const credentialID = "authentication.kubernetes.io/credential-id"

// scripts is what tokens for scripts need of a replica.
type scripts struct {
	maxTTL time.Duration
	member func(*http.Request) string
	gate   *limit.Gate // where users wait to make, list and revoke tokens
	uses   *lru.Cache  // when the last use of a token was written, by ID
	rate   *rate.Limiter
}

// newScripts lets a user do one thing with their tokens at a time: to list those of one user is to look at all labels in the cache.
func newScripts(o Options) scripts {
	gate := limit.NewGate(limit.Bounds{User: 1, All: 4, Queue: 64, QueueUser: 4, Wait: seen}, limit.Observer{})
	return scripts{maxTTL: o.MaxTTL, member: o.Audiences.Member, gate: gate, uses: lru.New(maxUses), rate: rate.NewLimiter(usesPerSecond, usesPerSecond)}
}

// apiToken is what is kept of a token.
type apiToken struct {
	id, user, uid, description string
	hash                       []byte
	// cluster is the only one that the token is good for, as <namespace>/<name>, empty for all.
	cluster                  string
	created, ends, used      time.Time
	name                     types.NamespacedName
	secretUID, secretVersion string
}

// readToken reads the Secret of a token. One that is not as the hub writes them is none.
func (s *Server) readToken(secret *corev1.Secret) (apiToken, bool) {
	text := func(key string) string { return string(secret.Data[key]) }
	t := apiToken{
		user: secret.Labels[labelUser], uid: text(keyUID), description: text(keyDescription), hash: secret.Data[keyHash], cluster: text(keyCluster),
		created: timeOf(secret, keyBegun), ends: timeOf(secret, keyEnds), used: timeOf(secret, keyUsed),
		name: client.ObjectKeyFromObject(secret), secretUID: string(secret.UID), secretVersion: secret.ResourceVersion,
	}
	if len(secret.Name) > len(TokenPrefix) {
		t.id = secret.Name[len(TokenPrefix):]
	}
	if longest := t.created.Add(s.scripts.maxTTL); t.ends.After(longest) { // the configuration became stricter
		t.ends = longest
	}
	ok := secret.Labels[v1.LabelSecretKind] == v1.SecretKindToken && secret.Name == TokenPrefix+t.id && apitoken.IsID(t.id) && t.user != "" && t.uid != "" && len(t.hash) > 0
	return t, ok && (t.cluster == "" || isCluster(t.cluster))
}

func refusedToken() *refusal.Error {
	return refusal.Unauthorized("the hub does not accept the token; it may have been revoked, or be incomplete")
}

// byToken returns the user of a token for scripts. Of one that the hub does not have, nothing but its cache is asked.
func (s *Server) byToken(r *http.Request, raw string) (identity.Identity, error) {
	given, ok := apitoken.Parse(raw)
	if !ok {
		return identity.Identity{}, refusedToken()
	}
	secret, err := s.secretOf(r.Context(), given)
	if apierrors.IsNotFound(err) {
		return identity.Identity{}, refusedToken().Because(err)
	} else if err != nil {
		return identity.Identity{}, refusal.Unavailable("the hub cannot check the token at the moment; try again").Because(err)
	}
	kept, ok := s.readToken(secret)
	switch {
	case !ok || !given.Matches(kept.hash):
		return identity.Identity{}, refusedToken()
	case !s.now().Before(kept.ends):
		return identity.Identity{}, refusal.Unauthorized("the token has expired; make another")
	}
	id, err := identity.Principal(v1.PrincipalPrefixLocal+kept.user, kept.uid)
	if err != nil {
		return identity.Identity{}, refusedToken().Because(err)
	}
	credential := []string{"TOKEN=" + kept.id}
	id.Extra, id.Hub.Extra = map[string][]string{identity.HubPrefix + credentialID: credential}, map[string]authenticationExtra{credentialID: credential}
	if err := s.admit(r.Context(), id); err != nil {
		return identity.Identity{}, err
	}
	if err := s.reaches(r, kept.cluster); err != nil {
		return identity.Identity{}, err
	}
	if s.scripts.member(r) == identity.Local {
		return identity.Identity{}, refusal.Unauthorized("a token for scripts is good for clusters, and not for the hub's own API")
	}
	s.noteUse(kept)
	return id, nil
}

// secretOf returns the Secret of a token. The cache of this replica may not have it yet if another one made it just now: only then, and only if the ID proves
// that the hub made it, the API server is asked.
func (s *Server) secretOf(ctx context.Context, given apitoken.Token) (*corev1.Secret, error) {
	secret, name := &corev1.Secret{}, s.name(TokenPrefix+given.ID)
	err := s.client.Get(ctx, name, secret)
	if !apierrors.IsNotFound(err) {
		return secret, err
	}
	if age := s.now().Sub(given.Made()); age > settle || age < -settle {
		return nil, err
	}
	current, keysErr := s.keys(ctx)
	if keysErr != nil {
		return nil, keysErr
	}
	sealing, keysErr := current.set.Sealing(current.active)
	if keysErr != nil {
		return nil, keysErr
	}
	if !given.Ours(sealing...) {
		return nil, err
	}
	return secret, s.live.Get(ctx, name, secret)
}

// reaches refuses a request with a token that is good for another member only, or for members and not for what is asked.
func (s *Server) reaches(r *http.Request, cluster string) error {
	if cluster == "" || s.scripts.member(r) == cluster {
		return nil
	}
	return refusal.Forbidden(fmt.Sprintf("the token is good for cluster %q only", cluster))
}

// noteUse keeps when a token was used last: once in usedEvery, and never more than usesPerSecond of all at this replica. What is too much is kept at a later use.
func (s *Server) noteUse(t apiToken) {
	now := s.now()
	if now.Sub(t.used) < usedEvery {
		return
	}
	if at, known := s.scripts.uses.Get(t.id); known && now.Sub(at.(time.Time)) < settle || !s.scripts.rate.AllowN(now, 1) { // the cache may not have the write yet; only times are ever added
		return
	}
	s.scripts.uses.Add(t.id, now)
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"data":{%q:%q}}`, t.secretUID, t.secretVersion, keyUsed, encoded(now.UTC().Format(time.RFC3339)))
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), useTimeout)
		defer cancel()
		secret := &corev1.Secret{}
		secret.Namespace, secret.Name = t.name.Namespace, t.name.Name
		err := s.client.Patch(ctx, secret, client.RawPatch(types.MergePatchType, patch))
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // another replica kept it, or it was revoked
			s.complain(err, "last use of a token not kept")
		}
	}()
}
