// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/apitoken"
	"github.com/drover-dev/drover/internal/untrusted"
)

// PathTokens is where users make, list and revoke their tokens for scripts.
const PathTokens = "/v1/auth/tokens"

const (
	// maxTokens bounds those of one user.
	maxTokens = 64
	// maxDescription bounds a description, in bytes.
	maxDescription = 256
	// defaultTTL is how long a token is valid if its user does not say.
	defaultTTL = 30 * 24 * time.Hour
	// minTTL is the shortest that may be asked for.
	minTTL = time.Minute
	// seen is how long the response to a new token waits for the cache to have it.
	seen = 5 * time.Second
)

type authenticationExtra = authenticationv1.ExtraValue

// TokenRequest asks for a token for scripts.
type TokenRequest struct {
	Description string `json:"description,omitempty"`
	// Cluster is the only one that it is to be good for, as <namespace>/<name>. Empty for all.
	Cluster string `json:"cluster,omitempty"`
	// TTL is how long it is to be valid. 30 days by default, or as long as the hub allows.
	TTL metav1.Duration `json:"ttl,omitzero"`
}

// TokenInfo describes a token for scripts.
type TokenInfo struct {
	ID          string    `json:"id"`
	Description string    `json:"description,omitempty"`
	Cluster     string    `json:"cluster,omitempty"`
	Created     time.Time `json:"created"`
	Expires     time.Time `json:"expires"`
	// LastUsed is coarse: it may be an hour behind, and more where many tokens are in use.
	LastUsed *time.Time `json:"lastUsed,omitempty"`
	// Token is the token itself. Only the response that made it has it.
	Token string `json:"token,omitempty"`
}

// TokenList lists tokens for scripts.
type TokenList struct {
	Items []TokenInfo `json:"items"`
}

// registerTokens adds the paths of tokens to a mux.
func (s *Server) registerTokens(mux *http.ServeMux) {
	mux.HandleFunc("POST "+PathTokens, s.owned(http.StatusCreated, s.makeToken))
	mux.HandleFunc("GET "+PathTokens, s.owned(http.StatusOK, s.listTokens))
	mux.HandleFunc("DELETE "+PathTokens+"/{id}", s.owned(http.StatusOK, s.revokeToken))
}

// owned serves what a user does with their tokens.
func (s *Server) owned(code int, do func(http.ResponseWriter, *http.Request, *v1.User) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := s.asOwner(w, r, do)
		if err != nil {
			e := refusal.Of(err)
			if e.Status().Code >= http.StatusInternalServerError {
				s.complain(err, "tokens not served")
			}
			audit.From(r.Context()).Refused(string(e.Status().Reason))
			refusal.Write(w, e)
			return
		}
		writeJSON(w, code, "no-store", answer)
	}
}

func (s *Server) asOwner(w http.ResponseWriter, r *http.Request, do func(http.ResponseWriter, *http.Request, *v1.User) (any, error)) (any, error) {
	id, err := s.signedIn(r)
	if err != nil {
		return nil, err
	}
	audit.From(r.Context()).Identified(audit.User{Name: id.User, UID: id.UID}, nil)
	name, local := strings.CutPrefix(id.User, v1.PrincipalPrefixLocal)
	if !local { // while the user does not sign in, their provider is not asked whether they are still there
		return nil, refusal.Forbidden("only users of the hub, local:<name>, have tokens for scripts")
	}
	seat, err := s.scripts.gate.Enter(r.Context(), limit.Requester{User: name})
	if err != nil {
		return nil, refusal.TooManyRequests("too many requests for tokens at the moment; try again", 2*time.Second).Because(err)
	}
	defer seat.Release()
	user, err := s.standing(r.Context(), s.client, name, id.UID)
	if errors.Is(err, errStanding) {
		return nil, refusal.Unauthorized("the user is disabled or no longer exists")
	} else if err != nil {
		return nil, refusal.Unavailable("the hub cannot look up the user at the moment; try again").Because(err)
	}
	return do(w, r, user)
}

// signedIn returns the user of a request that has a token of a session, which is good for everything: a token for scripts makes no other.
func (s *Server) signedIn(r *http.Request) (identity.Identity, error) {
	raw, err := identity.Token(r)
	if err != nil {
		return identity.Identity{}, err
	}
	_, id, err := s.bySession(r.Context(), raw)
	return id, err
}

func (s *Server) makeToken(w http.ResponseWriter, r *http.Request, user *v1.User) (any, error) {
	asked, err := s.readTokenRequest(w, r)
	if err != nil {
		return nil, err
	}
	all, err := s.tokensOf(r.Context(), user)
	if err != nil {
		return nil, err
	}
	if len(all) >= maxTokens {
		return nil, refusal.Forbidden(fmt.Sprintf("you have %d tokens, as many as a user may have; revoke one", len(all)))
	}
	current, err := s.keys(r.Context())
	if err != nil {
		return nil, refusal.Unavailable("the hub cannot make a token at the moment; try again").Because(err)
	}
	sealing, err := current.set.Sealing(current.active)
	if err != nil {
		return nil, err
	}
	now := s.now().UTC().Truncate(time.Second)
	made, raw, err := apitoken.New(sealing[0], now)
	if err != nil {
		return nil, err
	}
	secret := who{User: user.Name, UID: user.UID}.session(s.name(TokenPrefix+made.ID), now, now.Add(asked.TTL.Duration))
	secret.Labels[v1.LabelSecretKind] = v1.SecretKindToken
	secret.Data[keyHash] = made.Hash()
	for key, value := range map[string]string{keyDescription: asked.Description, keyCluster: asked.Cluster} {
		if value != "" {
			secret.Data[key] = []byte(value)
		}
	}
	if err := s.client.Create(r.Context(), secret); err != nil {
		return nil, refusal.Unavailable("the hub cannot keep a token at the moment; try again").Because(err)
	}
	s.awaitSeen(r.Context(), secret)
	kept, _ := s.readToken(secret)
	info := kept.info()
	info.Token = raw
	return info, nil
}

// awaitSeen waits until the cache has a new token, so that the next of its user is counted with it. If that takes long, it does not matter.
func (s *Server) awaitSeen(ctx context.Context, secret *corev1.Secret) {
	_ = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, seen, true, func(ctx context.Context) (bool, error) {
		return s.client.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}) == nil, nil
	})
}

// readTokenRequest reads and checks what a user asks for.
func (s *Server) readTokenRequest(w http.ResponseWriter, r *http.Request) (TokenRequest, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return TokenRequest{}, refusal.BadRequest("the request has no body of type application/json")
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxForm))
	if err != nil {
		return TokenRequest{}, refusal.BadRequest(fmt.Sprintf("the body could not be read, or is longer than %d bytes", maxForm))
	}
	return s.parseTokenRequest(raw)
}

func (s *Server) parseTokenRequest(raw []byte) (TokenRequest, error) {
	asked := TokenRequest{TTL: metav1.Duration{Duration: min(defaultTTL, s.scripts.maxTTL)}}
	if err := untrusted.StrictJSON(raw, &asked, untrusted.Small()); err != nil {
		return TokenRequest{}, refusal.BadRequest("the body is not of the form {\"description\": …, \"cluster\": …, \"ttl\": …}")
	}
	switch {
	case len(asked.Description) > maxDescription || !utf8.ValidString(asked.Description) || strings.ContainsFunc(asked.Description, func(c rune) bool { return !unicode.IsPrint(c) }):
		return TokenRequest{}, refusal.BadRequest(fmt.Sprintf("description has more than %d bytes, or characters that cannot be printed", maxDescription))
	case asked.Cluster != "" && !isCluster(asked.Cluster):
		return TokenRequest{}, refusal.BadRequest("cluster is not of the form <namespace>/<name>")
	case asked.TTL.Duration < minTTL || asked.TTL.Duration > s.scripts.maxTTL:
		return TokenRequest{}, refusal.BadRequest(fmt.Sprintf("ttl must be %s to %s", minTTL, s.scripts.maxTTL))
	}
	return asked, nil
}

// isCluster reports whether a text can be the namespace and the name of a Cluster.
func isCluster(s string) bool {
	namespace, name, _ := strings.Cut(s, "/")
	return len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
}

func (s *Server) listTokens(_ http.ResponseWriter, r *http.Request, user *v1.User) (any, error) {
	all, err := s.tokensOf(r.Context(), user)
	if err != nil {
		return nil, err
	}
	list := TokenList{Items: make([]TokenInfo, 0, len(all))}
	for _, t := range all {
		list.Items = append(list.Items, t.info())
	}
	return list, nil
}

// tokensOf returns the tokens of a user, the oldest first: not those of a former one of the name.
func (s *Server) tokensOf(ctx context.Context, user *v1.User) ([]apiToken, error) {
	var secrets corev1.SecretList
	if err := s.client.List(ctx, &secrets, client.InNamespace(s.namespace), client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindToken, labelUser: user.Name}); err != nil {
		return nil, refusal.Unavailable("the hub cannot list tokens at the moment; try again").Because(err)
	}
	var all []apiToken
	for i := range secrets.Items {
		if t, ok := s.readToken(&secrets.Items[i]); ok && t.uid == string(user.UID) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b apiToken) int { return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id)) })
	return all, nil
}

func (s *Server) revokeToken(_ http.ResponseWriter, r *http.Request, user *v1.User) (any, error) {
	none := refusal.New(http.StatusNotFound, metav1.StatusReasonNotFound, "you have no token of that ID")
	id := r.PathValue("id")
	if !apitoken.IsID(id) {
		return nil, none
	}
	secret, name := &corev1.Secret{}, s.name(TokenPrefix+id)
	err := s.client.Get(r.Context(), name, secret)
	if apierrors.IsNotFound(err) { // it may have been made at another replica just now; who asks has signed in, and does one thing at a time
		err = s.live.Get(r.Context(), name, secret)
	}
	if err == nil {
		if t, ok := s.readToken(secret); !ok || t.user != user.Name || t.uid != string(user.UID) {
			return nil, none
		}
		err = s.client.Delete(r.Context(), secret, client.Preconditions{UID: &secret.UID})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, none
	case err != nil:
		return nil, refusal.Unavailable("the hub cannot revoke the token at the moment; try again").Because(err)
	}
	return struct{}{}, nil
}

func (t apiToken) info() TokenInfo {
	info := TokenInfo{ID: t.id, Description: t.description, Cluster: t.cluster, Created: t.created, Expires: t.ends}
	if !t.used.IsZero() {
		info.LastUsed = &t.used
	}
	return info
}

// encoded is a text as the data of a Secret has it.
func encoded(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
