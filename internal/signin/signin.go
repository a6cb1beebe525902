// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package signin implements the OpenID Connect issuer that users sign in to, and authenticates users by their tokens.
package signin

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/direct"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/login"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/page"
	"github.com/drover-dev/drover/internal/signin/quietlog"
	"github.com/drover-dev/drover/internal/signin/scripttoken"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/upstream"
	"github.com/drover-dev/drover/internal/signin/workload"
)

// Paths of the issuer's metadata and public keys. The paths of the other endpoints are in the packages login, grant and
// scripttoken.
const (
	PathDiscovery = "/.well-known/openid-configuration"
	PathKeys      = "/v1/auth/keys"
)

// KeysSecret is the name of the Secret in the manager's namespace that holds the signing keys. KeyOfKeys is the entry
// in the Secret's data that contains them.
const (
	KeysSecret = keyring.Secret
	KeyOfKeys  = keyring.Field
)

// Bounds are the time limits for sessions with refresh tokens.
type Bounds = session.Bounds

// Direct holds the settings for direct access to clusters.
type Direct = direct.Options

// Options configures a Server. All fields are required.
type Options struct {
	// Issuer is the public URL of the hub.
	Issuer string
	// Client reads Users, AuthProviders, and the Secrets in Namespace from a cache, and writes sessions. Live reads
	// objects that might not be in the cache yet from the API server.
	Client    client.Client
	Live      client.Reader
	Namespace string
	// Disabled reports whether a User disables a principal of an AuthProvider. The User names the principal in
	// spec.principal.
	Disabled func(ctx context.Context, principal string) (bool, error)
	// Named returns the given groups that bindings refer to. If they do not all fit in a token, the first groups take
	// precedence.
	Named    func(groups []string) ([]string, error)
	Sessions Bounds
	Now      func() time.Time
	Log      logr.Logger
	// MaxTTL is the maximum lifetime of a script token.
	MaxTTL time.Duration
	// Audiences determines which member a request is for, and which members a workload token names.
	Audiences identity.Audiences
	Direct    Direct
}

// Server is the issuer on one replica. Create one with New. It is safe for concurrent use.
type Server struct {
	*direct.Access // for direct access to members

	issuer   string
	keyring  *keyring.Keyring
	accounts *account.Accounts
	log      *quietlog.Log

	pages        *login.Pages
	grants       *grant.Server
	accessTokens *accesstoken.Verifier
	scriptTokens *scripttoken.Server
	workloads    *workload.Authenticator
}

// New returns a Server.
func New(o Options) *Server {
	log := quietlog.New(o.Log)
	keys := keyring.New(o.Client, o.Namespace, o.Now)
	accounts := &account.Accounts{
		Cache: o.Client, Live: o.Live, Namespace: o.Namespace, Disabled: o.Disabled, Named: o.Named, Log: log,
	}
	sessions := session.NewStore(o.Client, o.Live, o.Namespace, o.Sessions, o.Now, log)
	connectors := &upstream.Connectors{Reader: o.Client, Namespace: o.Namespace, Now: o.Now}
	access := accesstoken.New(o.Issuer, keys, sessions, accounts, o.Audiences.Member, o.Now)
	own := accesstoken.NewOwn(access, log)
	members := &direct.Access{
		Options: o.Direct, URL: o.Issuer, Keyring: keys, Sessions: sessions, Accounts: accounts, Now: o.Now,
	}
	return &Server{
		Access: members, issuer: o.Issuer, keyring: keys, accounts: accounts, log: log, accessTokens: access,
		pages: login.New(login.Options{
			Issuer: o.Issuer, Keyring: keys, Accounts: accounts, Sessions: sessions, Connectors: connectors,
			Now: o.Now, Log: log,
		}),
		grants: grant.New(grant.Options{
			Issuer: o.Issuer, Keyring: keys, Accounts: accounts, Sessions: sessions, Connectors: connectors,
			AccessTokens: access, Own: own, Direct: members, Now: o.Now, Log: log,
		}),
		scriptTokens: scripttoken.NewServer(scripttoken.Options{
			Client: o.Client, Live: o.Live, Namespace: o.Namespace, MaxTTL: o.MaxTTL, Member: o.Audiences.Member,
			Keyring: keys, Accounts: accounts, AccessTokens: access, Own: own, Now: o.Now, Log: log,
		}),
		workloads: workload.NewAuthenticator(workload.Authenticator{
			Cache: o.Client, Accounts: accounts, Connector: connectors.Get, Audiences: o.Audiences, Now: o.Now, Log: log,
		}),
	}
}

// Register adds the issuer's endpoints to a mux.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathDiscovery, s.discovery)
	mux.HandleFunc("GET "+PathKeys, s.publicKeys)
	s.pages.Register(mux)
	s.grants.Register(mux)
	s.scriptTokens.Register(mux)
}

// metadata describes the issuer (OpenID Connect Discovery 1.0, RFC 8414). Every URL starts with the issuer, regardless
// of the host in a request.
type metadata struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	Revocation    string   `json:"revocation_endpoint"`
	Device        string   `json:"device_authorization_endpoint"`
	Keys          string   `json:"jwks_uri"`
	Responses     []string `json:"response_types_supported"`
	Modes         []string `json:"response_modes_supported"`
	Grants        []string `json:"grant_types_supported"`
	Subjects      []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	Scopes        []string `json:"scopes_supported"`
	Clients       []string `json:"token_endpoint_auth_methods_supported"`
	Revokers      []string `json:"revocation_endpoint_auth_methods_supported"`
	Challenges    []string `json:"code_challenge_methods_supported"`
	NamesIssuer   bool     `json:"authorization_response_iss_parameter_supported"`
}

func (s *Server) discovery(w http.ResponseWriter, _ *http.Request) {
	oauth.WriteJSON(w, http.StatusOK, oauth.Public, metadata{
		Issuer: s.issuer, Authorization: s.issuer + login.PathAuthorize, Token: s.issuer + grant.PathToken,
		Revocation: s.issuer + grant.PathRevoke, Device: s.issuer + oauth.PathDevice, Keys: s.issuer + PathKeys,
		Responses: []string{"code"}, Modes: []string{"query"}, Grants: grant.Types(), Subjects: []string{"public"},
		Algorithms: []string{string(jose.ES256)}, Scopes: []string{oauth.ScopeOpenID, oauth.ScopeOffline},
		Clients: []string{"none"}, Revokers: []string{"none"}, Challenges: []string{"S256"}, NamesIssuer: true,
	})
}

func (s *Server) publicKeys(w http.ResponseWriter, r *http.Request) {
	current, err := s.keyring.Current(r.Context())
	if err != nil {
		s.log.Complain(err, "sign-in request not served")
		page.WriteUnavailable(w)
		return
	}
	oauth.WriteJSON(w, http.StatusOK, oauth.Public, current.Set.JWKS())
}

// Authenticate returns a function that authenticates requests with script tokens, access tokens from this issuer, and
// workload tokens. It calls next for all other tokens. Tokens that are meant for this hub are never passed to next,
// because a TokenReview would return different user names.
func (s *Server) Authenticate(
	next func(*http.Request) (identity.Identity, error),
) func(*http.Request) (identity.Identity, error) {
	return func(r *http.Request) (identity.Identity, error) {
		raw, err := identity.Token(r)
		if err != nil {
			return identity.Identity{}, err
		}
		if scripttoken.Is(raw) {
			return s.scriptTokens.Identify(r, raw)
		}
		sum := sha256.Sum256([]byte(raw))
		if s.accessTokens.Claims(raw, sum) {
			return s.accessTokens.Identify(r, raw, sum)
		}
		if id, ours, err := s.workloads.Identify(r, raw, sum); ours {
			return id, err
		}
		return next(r)
	}
}

// Authorize returns a function that calls next unless the user is disabled. A request in progress may continue after
// its token has expired, but not after the user has been disabled.
func (s *Server) Authorize(
	next func(context.Context, identity.Identity, types.NamespacedName) error,
) func(context.Context, identity.Identity, types.NamespacedName) error {
	return func(ctx context.Context, id identity.Identity, cluster types.NamespacedName) error {
		if !strings.HasPrefix(id.User, identity.HubPrefix) {
			if err := s.accounts.Admit(ctx, id); err != nil {
				return err
			}
		}
		return next(ctx, id, cluster)
	}
}
