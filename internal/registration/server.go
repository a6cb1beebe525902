// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"encoding/json"
	"errors"
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
)

// TokenHashIndex is the field index of registration Secrets by the hash of their token. IndexTokenHash computes it.
const TokenHashIndex = "drover.tokenHash"

// IndexTokenHash is the indexer behind TokenHashIndex.
func IndexTokenHash(object client.Object) []string {
	secret, ok := object.(*corev1.Secret)
	if !ok || secret.Labels[v1.LabelSecretKind] != v1.SecretKindRegistration || len(secret.Data[KeyToken]) == 0 {
		return nil
	}
	return []string{HashToken(string(secret.Data[KeyToken]))}
}

// errUnknownToken says that no Cluster has a token. It is told apart from a refusal so that it is never shown on a Cluster.
var errUnknownToken = errors.New("no cluster has this join token; fetch the manifest again")

// Server serves what agents ask of the hub before there is a tunnel, and authenticates those who open one.
type Server struct {
	// Cache answers reads from memory; Live asks the API server. Live decides, Cache spares it those who know nothing.
	Cache client.Reader
	Live  client.Reader
	// Writer creates and updates agent Secrets.
	Writer client.Writer
	// Settings that an agent with that trust is told.
	Settings func(v1.Trust) protocol.Settings
	// Audience of connect tokens: this hub.
	Audience string
	// Refused is told of those who showed a Cluster's token or key and were turned away.
	Refused func(cluster types.NamespacedName, reason, message string)
	Now     func() time.Time
	Log     logr.Logger

	seen replayGuard
}

// Register serves the paths for agents, but for PathConnect, which the caller combines with Authenticate.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+protocol.PathRegister, s.serveRegister)
	mux.HandleFunc("GET "+protocol.PathImport+"{file}", s.serveImport)
	mux.HandleFunc("GET "+protocol.PathCACerts, s.serveCACerts)
}

func (s *Server) serveCACerts(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, _ = w.Write([]byte(s.Settings(v1.TrustPinned).CABundle))
}

// serveImport serves the manifest to whoever has a token that can still be used. Query parameters are refused: nothing that a
// caller says may reach the manifest (CVE-2026-44939).
func (s *Server) serveImport(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		http.Error(w, "query parameters are not accepted here", http.StatusBadRequest)
		return
	}
	token, isYAML := strings.CutSuffix(r.PathValue("file"), ".yaml")
	found, err := s.find(r.Context(), s.Cache, token)
	if !isYAML || errors.Is(err, errUnknownToken) {
		http.Error(w, errUnknownToken.Error(), http.StatusNotFound)
		return
	}
	if err != nil {
		s.unavailable(w, err, "read join token")
		return
	}
	if refusal := found.token.Usable(found.name.String(), s.Now()); refusal != nil {
		http.Error(w, refusal.Message, http.StatusGone)
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(found.secret.Data[KeyManifest])
}

func (s *Server) serveRegister(w http.ResponseWriter, r *http.Request) {
	token, ok := bearer(r)
	if !ok {
		writeRefusal(w, http.StatusUnauthorized, refuse(v1.ReasonTokenInvalid, "exactly one header \"Authorization: Bearer <join token>\" is required"))
		return
	}
	var request protocol.RegisterRequest
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, protocol.MaxBody))
	body.DisallowUnknownFields()
	if err := body.Decode(&request); err != nil {
		writeRefusal(w, http.StatusBadRequest, refuse(v1.ReasonTokenInvalid, "the body is not a register request"))
		return
	}
	if _, err := s.find(r.Context(), s.Cache, token); errors.Is(err, errUnknownToken) {
		writeRefusal(w, http.StatusUnauthorized, refuse(v1.ReasonTokenInvalid, "%s", err))
		return
	}
	response, err := s.join(r.Context(), token, request)
	var refusal *RefusalError
	switch {
	case errors.Is(err, errUnknownToken):
		writeRefusal(w, http.StatusUnauthorized, refuse(v1.ReasonTokenInvalid, "%s", err))
	case errors.As(err, &refusal):
		writeRefusal(w, refusalStatus(refusal), refusal)
	case err != nil:
		s.unavailable(w, err, "register agent")
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(response)
	}
}

// join decides about a join on what the API server says now, and writes it. Of two that race for one token one gets a conflict and
// is decided again.
func (s *Server) join(ctx context.Context, token string, request protocol.RegisterRequest) (*protocol.RegisterResponse, error) {
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
		join, refusal := DecideJoin(JoinInput{
			Cluster: found.name.String(), OwnerUID: found.cluster.UID, Token: found.token, Current: current, Request: request, Now: s.Now(),
		})
		if refusal != nil {
			s.Refused(found.name, refusal.Reason, refusal.Message)
			return nil, refusal
		}
		if join.Write {
			if conflict = s.write(ctx, secret, found.cluster, join.Identity); apierrors.IsConflict(conflict) || apierrors.IsAlreadyExists(conflict) {
				continue
			} else if conflict != nil {
				return nil, conflict
			}
			s.Log.Info("agent joined", "cluster", found.name, "clusterUID", join.Identity.ClusterUID)
		}
		return &protocol.RegisterResponse{
			Cluster:  protocol.ClusterRef{Namespace: found.name.Namespace, Name: found.name.Name, UID: string(found.cluster.UID)},
			Audience: s.Audience,
			Settings: s.Settings(found.cluster.Spec.Agent.Trust),
		}, nil
	}
	return nil, conflict
}

// write creates or replaces the agent Secret of a Cluster, on the condition that it is still as it was read.
func (s *Server) write(ctx context.Context, secret *corev1.Secret, cluster *v1.Cluster, id AgentIdentity) error {
	exists := secret.ResourceVersion != ""
	WriteIdentity(secret, cluster, id)
	if exists {
		return s.Writer.Update(ctx, secret)
	}
	return s.Writer.Create(ctx, secret)
}

func (s *Server) unavailable(w http.ResponseWriter, err error, doing string) {
	s.Log.Error(err, "request of an agent not served", "doing", doing)
	w.Header().Set("Retry-After", "5")
	http.Error(w, doing+": the hub's API server does not answer; try again", http.StatusServiceUnavailable)
}

// bearer is the token of a request with exactly one Authorization header.
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
