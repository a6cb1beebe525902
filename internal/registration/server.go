// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/untrusted"
)

// TokenHashIndex is the field index of registration Secrets by the hash of their token. IndexTokenHash computes the
// indexed values.
const TokenHashIndex = "drover.tokenHash"

// IndexTokenHash computes the indexed values for TokenHashIndex.
func IndexTokenHash(object client.Object) []string {
	secret, ok := object.(*corev1.Secret)
	if !ok || len(secret.Data[KeyToken]) == 0 {
		return nil
	}
	if kind := secret.Labels[v1.LabelSecretKind]; kind != v1.SecretKindRegistration && kind != v1.SecretKindHostJoin {
		return nil
	}
	return []string{HashToken(string(secret.Data[KeyToken]))}
}

// errUnknownToken is returned when no Cluster has the token. It is not a RefusalError, because there is no Cluster
// whose status could show the refusal.
var errUnknownToken = errors.New("no cluster has this join token; fetch the manifest again")

// bodyTimeout is how long a client may take to send a request body.
const bodyTimeout = 10 * time.Second

// Server serves the requests that agents send before they have a tunnel, and authenticates the agents that open a
// tunnel.
type Server struct {
	// Cache reads from memory. Live reads from the API server and is authoritative. The cache protects the API server
	// from clients that have no valid token.
	Cache client.Reader
	Live  client.Reader
	// Writer creates and updates agent Secrets.
	Writer client.Writer
	// Settings returns the settings that agents receive.
	Settings func() protocol.Settings
	// Audience returns the audience of connect tokens. The audience identifies the hub.
	Audience func() string
	// Refused is called after the hub has refused a client that has a Cluster's token or key.
	Refused func(cluster types.NamespacedName, reason, message string)
	// Unproven is called after a client has named an existing Cluster without proof. Any client can cause this call.
	Unproven func(cluster types.NamespacedName, reason, message string)
	Now      func() time.Time
	Log      logr.Logger

	replays   replayGuard
	limits    limits
	downloads downloads
}

// Register adds handlers for the paths that agents use, except PathConnect. The caller combines PathConnect with
// Authenticate.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+protocol.PathRegister, s.serveRegister)
	mux.HandleFunc("GET "+protocol.PathImport+"{file}", s.serveImport)
	mux.HandleFunc("GET "+protocol.PathCACerts, s.serveCACerts)
	mux.HandleFunc("GET "+protocol.PathHostScript, serveHostScript)
	mux.HandleFunc("GET "+protocol.PathHostAgent+"{platform}", s.downloads.serveHostAgent)
}

func (s *Server) serveCACerts(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, _ = w.Write([]byte(s.Settings().CABundle))
}

// serveImport serves the manifest to clients whose token can still be used. It refuses query parameters, because data
// from a client must never become part of the manifest (CVE-2026-44939).
func (s *Server) serveImport(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		http.Error(w, "query parameters are not accepted here", http.StatusBadRequest)
		return
	}
	token, isYAML := strings.CutSuffix(r.PathValue("file"), ".yaml")
	found, err := s.find(r.Context(), s.Cache, token)
	if err == nil && kindOf(found.owner) != "Cluster" {
		err = errUnknownToken // a Host has no manifest
	}
	if err == nil && isYAML {
		found, err = s.findManifest(r.Context(), found.name, token)
	}
	if !isYAML || errors.Is(err, errUnknownToken) {
		http.Error(w, errUnknownToken.Error(), http.StatusNotFound)
		return
	}
	var refusal *RefusalError
	if err == nil {
		refusal = found.token.Usable(found.name.String(), s.Now())
	}
	if refusal != nil || errors.As(err, &refusal) {
		http.Error(w, refusal.Message, http.StatusGone)
		return
	}
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "2")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if err != nil {
		s.unavailable(w, err, "read join token")
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(found.secret.Data[KeyManifest])
}

// findManifest reads the manifest from the API server, because the cache does not contain it. The number of reads per
// token is limited.
func (s *Server) findManifest(ctx context.Context, cluster types.NamespacedName, token string) (*registered, error) {
	if !s.limits.join(cluster, s.Now()) {
		return nil, errBusy
	}
	return s.find(ctx, s.Live, token)
}

func (s *Server) serveRegister(w http.ResponseWriter, r *http.Request) {
	token, ok := bearer(r)
	if !ok {
		writeRefusal(w, http.StatusUnauthorized,
			refuse(v1.ReasonTokenInvalid, "exactly one header \"Authorization: Bearer <join token>\" is required"))
		return
	}
	response, err := s.register(w, r, token)
	if err != nil {
		s.answer(w, err, "register agent")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(response)
}

// register lets an agent join. If a client has no valid token, register looks up the token in the cache once and does
// not read the body.
func (s *Server) register(w http.ResponseWriter, r *http.Request, token string) (*protocol.RegisterResponse, error) {
	known, err := s.find(r.Context(), s.Cache, token)
	if err != nil {
		return nil, err
	}
	if !s.limits.join(known.name, s.Now()) {
		return nil, errBusy
	}
	request, err := readRequest(w, r)
	if err != nil {
		return nil, err
	}
	return s.join(r.Context(), token, request)
}

// errMalformed is returned for a body that is not a valid RegisterRequest.
var errMalformed = errors.New("the body is not a register request")

func readRequest(w http.ResponseWriter, r *http.Request) (protocol.RegisterRequest, error) {
	var request protocol.RegisterRequest
	// only writers in tests do not support deadlines
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	tooLarge := (*http.MaxBytesError)(nil)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, protocol.MaxBody))
	if errors.As(err, &tooLarge) {
		return request, tooLarge
	}
	if err != nil || untrusted.StrictJSON(body, &request, untrusted.Large()) != nil {
		return request, errMalformed // the underlying error would quote the body
	}
	return request, nil
}

// join decides whether an agent may join, based on the current state in the API server, and writes the result. If two
// agents use the same token at the same time, one of the writes causes a conflict, and join then decides again.
func (s *Server) join(ctx context.Context, token string, request protocol.RegisterRequest) (*protocol.RegisterResponse,
	error) {
	const attempts = 3
	var conflict error
	for range attempts {
		found, err := s.find(ctx, s.Live, token)
		if err != nil {
			return nil, err
		}
		secret, current, err := s.identity(ctx, s.Live, found.name)
		if err != nil {
			return nil, err
		}
		if secret.ResourceVersion != "" && !Ours(secret, found.name.Name, v1.SecretKindAgent) {
			refusal := refuse(v1.ReasonSecretConflict, "Secret %s exists on the hub and is not Drover's; rename or delete it",
				AgentSecret(found.name))
			s.Refused(found.name, refusal.Reason, refusal.Message)
			return nil, refusal
		}
		if err := s.elsewhere(ctx, found.name, token, request); err != nil {
			return nil, err
		}
		join, refusal := DecideJoin(JoinInput{
			Cluster: found.name.String(), OwnerUID: found.owner.GetUID(), Token: found.token, Current: current, Request: request,
			Now: s.Now(),
		})
		if refusal != nil {
			s.Refused(found.name, refusal.Reason, refusal.Message)
			return nil, refusal
		}
		if join.Write {
			if conflict = s.claim(ctx, found); conflict == nil {
				conflict = s.write(ctx, secret, found.owner, join.Identity)
			}
			if apierrors.IsConflict(conflict) || apierrors.IsAlreadyExists(conflict) || apierrors.IsNotFound(conflict) {
				continue
			} else if conflict != nil {
				return nil, conflict
			}
			s.limits.hasJoined(found.name, s.Now())
			s.Log.Info("agent joined", "cluster", found.name, "clusterUID", join.Identity.ClusterUID)
		}
		return &protocol.RegisterResponse{
			Cluster: protocol.ClusterRef{
				Namespace: found.name.Namespace, Name: found.name.Name, UID: string(found.owner.GetUID()),
			},
			Audience: s.Audience(),
			Settings: s.Settings(),
		}, nil
	}
	return nil, conflict
}

// claim sets an annotation on the Secret with a Cluster's token before an agent joins with the token. The admission
// policy allows editors to delete only the Secret of an unused token, and recognizes a used token by this annotation.
// If only the controller wrote the annotation, an editor could delete the Secret just after a join, and use the next
// token to replace the member's agent with another one.
//
// The token stays valid until the controller writes the token's hash to the annotation, so a join that fails at this
// point can be repeated.
func (s *Server) claim(ctx context.Context, found *registered) error {
	if _, isCluster := found.owner.(*v1.Cluster); !isCluster {
		return nil // the Secret of a Host's token is always protected
	}
	if found.secret.Annotations == nil {
		found.secret.Annotations = map[string]string{}
	}
	found.secret.Annotations[annotationTokenUsed] = tokenJoining + s.Now().UTC().Format(time.RFC3339)
	return s.Writer.Update(ctx, found.secret)
}

// write creates or replaces a Cluster's agent Secret, provided that the Secret has not changed since it was read.
func (s *Server) write(ctx context.Context, secret *corev1.Secret, owner client.Object, id AgentIdentity) error {
	exists := secret.ResourceVersion != ""
	WriteIdentity(secret, owner, id)
	if exists {
		return s.Writer.Update(ctx, secret)
	}
	return s.Writer.Create(ctx, secret)
}

func (s *Server) answer(w http.ResponseWriter, err error, doing string) {
	var refusal *RefusalError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &refusal):
		writeRefusal(w, refusalStatus(refusal), refusal)
	case errors.Is(err, errUnknownToken):
		writeRefusal(w, http.StatusUnauthorized, refuse(v1.ReasonTokenInvalid, "%s", err))
	case errors.Is(err, protocol.ErrConnectToken):
		writeRefusal(w, http.StatusUnauthorized, refuse(v1.ReasonTokenInvalid, "%s; check the clock of the agent's machine",
			err))
	case errors.Is(err, errMalformed):
		writeRefusal(w, http.StatusBadRequest, refuse(v1.ReasonTokenInvalid, "%s", err))
	case errors.As(err, &tooLarge):
		writeRefusal(w, http.StatusRequestEntityTooLarge, refuse(v1.ReasonTokenInvalid, "the body is larger than %d bytes",
			tooLarge.Limit))
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", "2")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		s.unavailable(w, err, doing)
	}
}

func (s *Server) unavailable(w http.ResponseWriter, err error, doing string) {
	s.Log.Error(err, "request of an agent not served", "doing", doing)
	w.Header().Set("Retry-After", "5")
	http.Error(w, doing+": the hub's API server does not respond; try again", http.StatusServiceUnavailable)
}

// bearer returns the bearer token of a request that has exactly one Authorization header.
func bearer(r *http.Request) (string, bool) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	return token, ok && strings.EqualFold(scheme, "Bearer") && token != ""
}

func refusalStatus(refusal *RefusalError) int {
	switch refusal.Reason {
	case v1.ReasonTokenUsed, v1.ReasonTokenExpired, v1.ReasonAwaitingAgent, v1.ReasonRemoving:
		return http.StatusGone
	case v1.ReasonTokenInvalid:
		return http.StatusUnauthorized
	}
	return http.StatusForbidden
}

func writeRefusal(w http.ResponseWriter, code int, refusal *RefusalError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(protocol.Refusal{Reason: refusal.Reason, Message: refusal.Message})
}
