// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package signin is the OpenID Connect issuer by which users sign in at the hub, and what makes users of its tokens.
package signin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/signin/seal"
	"github.com/drover-dev/drover/internal/signin/upstream"
)

// Paths of the issuer.
const (
	PathDiscovery = "/.well-known/openid-configuration"
	PathKeys      = "/v1/auth/keys"
	PathAuthorize = "/v1/auth/authorize"
	PathLogin     = "/v1/auth/login"
	PathToken     = "/v1/auth/token"
	PathRevoke    = "/v1/auth/revoke"
	PathDevice    = "/v1/auth/device"
	// PathPage is that of the hub's own page, which is a client too.
	PathPage = "/ui/"
)

// KeysSecret is the Secret with the signing keys, in the manager's namespace, and KeyOfKeys its key there.
const (
	KeysSecret = "drover-sign-in"
	KeyOfKeys  = "keys"
)

// Purposes of what is sealed.
const (
	purposePage   = "page"
	purposeCode   = "code"
	purposeDevice = "device"
	// purposeDeviceCode is that of codes of devices, and purposeDevice that of the cookie of browsers.
	purposeDeviceCode = "device code"
)

const (
	// maxForm bounds a form, in bytes. The longest has a code with the groups of a user and what their provider is asked again with.
	maxForm = 32 << 10
	// maxVerified bounds the tokens whose signature is remembered.
	maxVerified = 8192
	// unseenPerSecond bounds what clients make the API server look up with sessions that no cache has.
	unseenPerSecond = 20
)

// Options of a Server. All are needed.
type Options struct {
	// Issuer is the URL that users know the hub by.
	Issuer string
	// Client reads Users, and the Secrets of Namespace, from a cache, and writes sessions. Live reads a session that the cache does not have yet.
	Client    client.Client
	Live      client.Reader
	Namespace string
	// Disabled reports whether a User refuses a principal that comes from an AuthProvider, and Named returns those groups that bindings name. The first ones go into a
	// token that has no room for all.
	Disabled func(ctx context.Context, principal string) (bool, error)
	Named    func(groups []string) ([]string, error)
	// Sessions are the bounds of a session whose client asked for refresh tokens.
	Sessions Bounds
	Now      func() time.Time
	Log      logr.Logger
	// MaxTTL is the longest that a token for scripts is valid.
	MaxTTL time.Duration
	// Audiences say which member a request goes to, and which ones tokens of workloads name.
	Audiences identity.Audiences
	// Direct is what is known of direct access to clusters.
	Direct Direct
}

// Server is the issuer on one replica. New makes it. It may be used concurrently.
type Server struct {
	issuer    string
	client    client.Client
	live      client.Reader
	namespace string
	bounds    Bounds
	now       func() time.Time
	log       logr.Logger

	complaints rate.Sometimes // visitors must not fill the log
	unseen     *rate.Limiter  // of sessions that are looked up at the API server because the cache does not have them
	loaded     atomic.Pointer[loaded]
	passwords  passwords
	codes      codes
	providers  providers
	issued
	scripts   scripts
	workloads workloads
}

// issued are the tokens of this issuer.
type issued struct {
	verified *cache.LRUExpireCache // of verified, by the digest of the token
	direct   Direct
}

// workloads are those with tokens of other issuers.
type workloads struct {
	known     *cache.LRUExpireCache // of workloadUser, by the digest of the token
	audiences identity.Audiences
}

// passwords are what bounds their guessing, and what checking them costs.
type passwords struct {
	attempts  *attempts.Log
	known     *limit.Gate // where those from browsers wait that their user has signed in with before
	strangers *limit.Gate // and all others
}

// providers are what logins at AuthProviders need.
type providers struct {
	connectors *upstream.Connectors
	gate       *limit.Gate // where logins wait that ask a provider
	failed     rates       // of logins that providers have not let in
	refreshes  *limit.Gate // where refreshes wait, by session
	disabled   func(context.Context, string) (bool, error)
	named      func([]string) ([]string, error)
}

// loaded are the keys of one version of their Secret, while one of them signs.
type loaded struct {
	version string
	uid     types.UID // of the Secret. One that was deleted and made again has another: all sessions have ended
	set     keys.Set
	active  keys.Key
	sealer  *seal.Sealer
	sealing [][]byte // the keys of the sealer
}

// New makes a Server.
func New(o Options) *Server {
	// Passwords leave a processor to all else. Each that is checked takes 19 MiB.
	strangers := max(1, runtime.GOMAXPROCS(0)/2)
	return &Server{
		issuer: o.Issuer, client: o.Client, live: o.Live, namespace: o.Namespace, bounds: o.Sessions, now: o.Now, log: o.Log,
		providers:  providers{connectors: &upstream.Connectors{Reader: o.Client, Namespace: o.Namespace, Now: o.Now}, gate: upstreamGate(), failed: newRates(failuresPerSecond, failuresAtOnce), refreshes: refreshGate(), disabled: o.Disabled, named: o.Named},
		complaints: rate.Sometimes{First: 1, Interval: time.Second}, unseen: rate.NewLimiter(unseenPerSecond, unseenPerSecond),
		passwords: passwords{attempts: attempts.New(), known: hashGate(1), strangers: hashGate(strangers)},
		codes:     newCodes(), issued: issued{cache.NewLRUExpireCache(maxVerified), o.Direct}, scripts: newScripts(o), workloads: workloads{cache.NewLRUExpireCache(maxVerified), o.Audiences},
	}
}

// hashGate lets so many passwords be checked at once, of each user or address one.
func hashGate(all int) *limit.Gate {
	return limit.NewGate(limit.Bounds{User: 1, All: all, Queue: 32, QueueUser: 2, Wait: hashWait}, limit.Observer{})
}

// upstreamGate lets so many logins ask providers at once, few of one address and not all at one provider.
func upstreamGate() *limit.Gate {
	return limit.NewGate(limit.Bounds{User: 8, Member: 16, All: 32, Queue: 64, QueueUser: 8, Wait: hashWait}, limit.Observer{})
}

// Register adds the issuer's paths to a mux.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathDiscovery, s.discovery)
	mux.HandleFunc("GET "+PathKeys, s.publicKeys)
	mux.HandleFunc("GET "+PathAuthorize, s.authorize)
	mux.HandleFunc("POST "+PathLogin, s.login)
	mux.HandleFunc("GET "+PathProvider+"{provider}", s.leave)
	mux.HandleFunc("GET "+PathCallback+"{provider}", s.callback)
	mux.HandleFunc("POST "+PathToken, s.token)
	mux.HandleFunc("POST "+PathRevoke, s.revocation)
	mux.HandleFunc("POST "+PathDevice, s.deviceAuthorization)
	mux.HandleFunc("GET "+PathDevice, s.verification)
	s.registerTokens(mux)
}

func (s *Server) name(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.namespace, Name: name}
}

// keys returns the keys as the cache has them. Without their Secret no token is valid: to delete it ends all of them.
func (s *Server) keys(ctx context.Context) (*loaded, error) {
	secret := &corev1.Secret{}
	if err := s.client.Get(ctx, s.name(KeysSecret), secret); err != nil { // from the cache
		return nil, fmt.Errorf("read the keys that sign tokens: %w", err)
	}
	last := s.loaded.Load()
	if last == nil || last.version != secret.ResourceVersion {
		set, err := keys.Decode(secret.Data[KeyOfKeys])
		if err != nil {
			return nil, fmt.Errorf("read Secret %s: %w; delete it, and the manager makes another", s.name(KeysSecret), err)
		}
		last = &loaded{version: secret.ResourceVersion, uid: secret.UID, set: set}
	}
	active, err := last.set.Active(s.now())
	if err != nil {
		return nil, err
	}
	if active.ID == last.active.ID {
		return last, nil
	}
	sealing, err := last.set.Sealing(active)
	if err != nil {
		return nil, err
	}
	sealer, err := seal.New(sealing...)
	if err != nil {
		return nil, err
	}
	next := &loaded{version: last.version, uid: last.uid, set: last.set, active: active, sealer: sealer, sealing: sealing}
	s.loaded.Store(next)
	return next, nil
}

// metadata describes the issuer (OpenID Connect Discovery 1.0, RFC 8414). Every URL begins with the issuer, whatever host a request names.
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
	writeJSON(w, http.StatusOK, "public, max-age=600", metadata{
		Issuer: s.issuer, Authorization: s.issuer + PathAuthorize, Token: s.issuer + PathToken, Revocation: s.issuer + PathRevoke, Device: s.issuer + PathDevice, Keys: s.issuer + PathKeys,
		Responses: []string{"code"}, Modes: []string{"query"}, Grants: grantTypes, Subjects: []string{"public"},
		Algorithms: []string{string(jose.ES256)}, Scopes: []string{scopeOpenID, scopeOffline}, Clients: []string{"none"}, Revokers: []string{"none"}, Challenges: []string{"S256"}, NamesIssuer: true,
	})
}

func (s *Server) publicKeys(w http.ResponseWriter, r *http.Request) {
	current, err := s.keys(r.Context())
	if err != nil {
		s.unavailable(w, err)
		return
	}
	writeJSON(w, http.StatusOK, "public, max-age=600", current.set.JWKS())
}

// complain logs what the hub cannot do, once a second.
func (s *Server) complain(err error, what string) {
	s.complaints.Do(func() { s.log.Error(err, what) })
}

// unavailable answers when the hub cannot do its part. The log says why.
func (s *Server) unavailable(w http.ResponseWriter, err error) {
	s.complain(err, "sign-in not served")
	w.Header().Set("Retry-After", "5")
	writeError(w, http.StatusServiceUnavailable, "The hub cannot do this at the moment. Try again.")
}

func writeJSON(w http.ResponseWriter, code int, caching string, content any) {
	body, err := json.Marshal(content)
	if err != nil { // what is written here always marshals
		code, body = http.StatusInternalServerError, []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", caching)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// form reads a form: flat, with each field once, and bounded.
func form(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, invalid("the request is no form")
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxForm))
	if err != nil {
		return nil, invalid("the form could not be read, or is longer than %d bytes", maxForm)
	}
	values, err := url.ParseQuery(string(raw))
	if err != nil {
		return nil, invalid("the form is malformed")
	}
	for name, all := range values {
		if len(all) > 1 {
			return nil, invalid("the field %.40q is given more than once", name)
		}
	}
	return values, nil
}
