// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scripttoken implements the tokens that users create for scripts.
package scripttoken

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/time/rate"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/quietlog"
	"github.com/drover-dev/drover/internal/signin/session"
)

// Prefix is the name prefix of token Secrets. The rest of the name is the token's ID.
const Prefix = "drover-token-"

// Keys in the data of a token's Secret. The Secret also contains some of the keys that a session's Secret contains.
const (
	keyHash        = "hash"
	keyDescription = "description"
	keyCluster     = "cluster"
	keyUsed        = "used"
)

const (
	// usedEvery is the minimum interval between two updates of a token's last use.
	usedEvery = time.Hour
	// usesPerSecond limits how often one replica records that a token was used. maxUses is the maximum number of recent
	// records that a replica keeps.
	usesPerSecond, maxUses = 1, 4096
	useTimeout             = 10 * time.Second
)

// credentialID is the extra field in which API servers record a user's credential. The field appears in the audit logs
// of the hub and of members.
const credentialID = "authentication.kubernetes.io/credential-id"

// Options configures a Server. All fields are required.
type Options struct {
	// Client reads from a cache, and Live reads from the API server.
	Client    client.Client
	Live      client.Reader
	Namespace string
	// MaxTTL is the maximum lifetime of a token.
	MaxTTL time.Duration
	// Member returns the member that a request is for.
	Member       func(*http.Request) string
	Keyring      *keyring.Keyring
	Accounts     *account.Accounts
	AccessTokens *accesstoken.Verifier
	Own          *accesstoken.Own
	Now          func() time.Time
	Log          *quietlog.Log
}

// Server creates, lists and revokes script tokens, and authenticates users with them. It is safe for concurrent use.
type Server struct {
	Options

	uses *lru.Cache // the time of the last write by token ID
	rate *rate.Limiter
}

// NewServer returns a Server.
func NewServer(o Options) *Server {
	return &Server{Options: o, uses: lru.New(maxUses), rate: rate.NewLimiter(usesPerSecond, usesPerSecond)}
}

// stored is a token as its Secret describes it.
type stored struct {
	id, user, uid, description string
	hash                       []byte
	// cluster limits the token to one cluster. It has the format <namespace>/<name>. If it is empty, the token is valid
	// for all clusters.
	cluster                  string
	created, ends, used      time.Time
	name                     types.NamespacedName
	secretUID, secretVersion string
}

func (s *Server) name(id string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: Prefix + id}
}

// read decodes a token's Secret. It returns false if the Secret is malformed.
func (s *Server) read(secret *corev1.Secret) (stored, bool) {
	text := func(key string) string { return string(secret.Data[key]) }
	t := stored{
		user: secret.Labels[session.LabelUser], uid: text(session.KeyUID), description: text(keyDescription),
		hash: secret.Data[keyHash], cluster: text(keyCluster), created: session.TimeOf(secret, session.KeyBegun),
		ends: session.TimeOf(secret, session.KeyEnds), used: session.TimeOf(secret, keyUsed),
		name: client.ObjectKeyFromObject(secret), secretUID: string(secret.UID), secretVersion: secret.ResourceVersion,
	}
	if len(secret.Name) > len(Prefix) {
		t.id = secret.Name[len(Prefix):]
	}
	if longest := t.created.Add(s.MaxTTL); t.ends.After(longest) { // the limit in the configuration may have been reduced
		t.ends = longest
	}
	ok := secret.Labels[v1.LabelSecretKind] == v1.SecretKindToken && secret.Name == Prefix+t.id && IsID(t.id) &&
		t.user != "" && t.uid != "" && len(t.hash) > 0
	return t, ok && (t.cluster == "" || oauth.IsCluster(t.cluster))
}

func refused() *refusal.Error {
	return refusal.Unauthorized("the hub does not accept the token; it may be revoked or incomplete")
}

// Identify returns the user of a script token.
func (s *Server) Identify(r *http.Request, raw string) (identity.Identity, error) {
	given, ok := Parse(raw)
	if !ok {
		return identity.Identity{}, refused()
	}
	secret, err := s.secretOf(r.Context(), given)
	if apierrors.IsNotFound(err) {
		return identity.Identity{}, refused().Because(err)
	} else if err != nil {
		return identity.Identity{},
			refusal.Unavailable("the hub cannot check the token at the moment; try again").Because(err)
	}
	kept, ok := s.read(secret)
	switch {
	case !ok || !given.Matches(kept.hash):
		return identity.Identity{}, refused()
	case !s.Now().Before(kept.ends):
		return identity.Identity{}, refusal.Unauthorized("the token has expired; create another one")
	}
	id, err := identity.Principal(v1.PrincipalPrefixLocal+kept.user, kept.uid)
	if err != nil {
		return identity.Identity{}, refused().Because(err)
	}
	credential := []string{"TOKEN=" + kept.id}
	id.Extra = map[string][]string{identity.HubPrefix + credentialID: credential}
	id.Hub.Extra = map[string]authenticationv1.ExtraValue{credentialID: credential}
	if err := s.Accounts.Admit(r.Context(), id); err != nil {
		return identity.Identity{}, err
	}
	if err := s.AccessTokens.Reaches(r, kept.cluster); err != nil {
		return identity.Identity{}, err
	}
	if s.Member(r) == identity.Local {
		return identity.Identity{},
			refusal.Unauthorized("a token for scripts is valid for clusters, but not for the hub's own API")
	}
	s.noteUse(kept)
	return id, nil
}

// secretOf returns a token's Secret. If another replica has just created the token, the cache of this replica might not
// contain the Secret yet. In that case, secretOf reads from the API server, but only if the ID proves that the hub
// created the token.
func (s *Server) secretOf(ctx context.Context, given Token) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := s.Client.Get(ctx, s.name(given.ID), secret)
	if !apierrors.IsNotFound(err) {
		return secret, err
	}
	if age := s.Now().Sub(given.Made()); age > session.Settle || age < -session.Settle {
		return nil, err
	}
	current, keysErr := s.Keyring.Current(ctx)
	if keysErr != nil {
		return nil, keysErr
	}
	if !given.Ours(current.Sealing...) {
		return nil, err
	}
	return secret, s.Live.Get(ctx, s.name(given.ID), secret)
}

// noteUse records the time when a token was last used. It writes at most once per usedEvery for each token, and limits
// the rate of all writes to usesPerSecond. If the limit has been reached, the use is not recorded.
func (s *Server) noteUse(t stored) {
	now := s.Now()
	if now.Sub(t.used) < usedEvery {
		return
	}
	at, known := s.uses.Get(t.id)
	if known && now.Sub(at.(time.Time)) < session.Settle { // the cache may lag behind; only times are added
		return
	}
	if !s.rate.AllowN(now, 1) {
		return
	}
	s.uses.Add(t.id, now)
	used := base64.StdEncoding.EncodeToString([]byte(now.UTC().Format(time.RFC3339)))
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"data":{%q:%q}}`,
		t.secretUID, t.secretVersion, keyUsed, used)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), useTimeout)
		defer cancel()
		secret := &corev1.Secret{}
		secret.Namespace, secret.Name = t.name.Namespace, t.name.Name
		err := s.Client.Patch(ctx, secret, client.RawPatch(types.MergePatchType, patch))
		// Another replica may have recorded the use, or the token may have been revoked.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			s.Log.Complain(err, "last use of a token not stored")
		}
	}()
}
