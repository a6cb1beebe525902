// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package scripttoken

import (
	"cmp"
	"context"
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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Path is the path of the endpoints for creating, listing and revoking script tokens.
const Path = "/v1/auth/tokens"

const (
	// maxTokens is the maximum number of tokens per user.
	maxTokens = 64
	// maxDescription is the maximum length of a description, in bytes.
	maxDescription = 256
	// defaultTTL is the default lifetime of a token.
	defaultTTL = 30 * 24 * time.Hour
	// minTTL is the minimum lifetime of a token.
	minTTL = time.Minute
)

// Request is a request for a script token.
type Request struct {
	Description string `json:"description,omitempty"`
	// Cluster limits the token to one cluster. It has the format <namespace>/<name>. If it is empty, the token is valid
	// for all clusters.
	Cluster string `json:"cluster,omitempty"`
	// TTL is the lifetime of the token. The default is 30 days, or the hub's limit if that is shorter.
	TTL metav1.Duration `json:"ttl,omitzero"`
}

// Info describes a script token.
type Info struct {
	ID          string    `json:"id"`
	Description string    `json:"description,omitempty"`
	Cluster     string    `json:"cluster,omitempty"`
	Created     time.Time `json:"created"`
	Expires     time.Time `json:"expires"`
	// LastUsed may be up to an hour out of date, or more if many tokens are in use.
	LastUsed *time.Time `json:"lastUsed,omitempty"`
	// Token is the token itself. Only the response to the request that creates a token contains this field.
	Token string `json:"token,omitempty"`
}

// List is a list of script tokens.
type List struct {
	Items []Info `json:"items"`
}

// Register adds the endpoints to a mux.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+Path, s.Own.Handler(http.StatusCreated, s.owned(s.create)))
	mux.HandleFunc("GET "+Path, s.Own.Handler(http.StatusOK, s.owned(s.list)))
	mux.HandleFunc("DELETE "+Path+"/{id}", s.Own.Handler(http.StatusOK, s.owned(s.revoke)))
}

// action is an operation on a user's own tokens. It returns the response.
type action func(http.ResponseWriter, *http.Request, *v1.User) (any, error)

func (s *Server) owned(do action) accesstoken.Action {
	return func(w http.ResponseWriter, r *http.Request, owner accesstoken.Owner) (any, error) {
		name, local := strings.CutPrefix(owner.User, v1.PrincipalPrefixLocal)
		if !local { // providers are only queried at login, so they could not end their users' script tokens
			return nil, refusal.Forbidden("only users of the hub, local:<name>, can have tokens for scripts")
		}
		user, err := s.Accounts.User(r.Context(), s.Accounts.Cache, name, owner.UID)
		if errors.Is(err, account.ErrNotStanding) {
			return nil, refusal.Unauthorized("the user is disabled or no longer exists")
		} else if err != nil {
			return nil, refusal.Unavailable("the hub cannot look up the user at the moment; try again").Because(err)
		}
		return do(w, r, user)
	}
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, user *v1.User) (any, error) {
	asked, err := s.readRequest(w, r)
	if err != nil {
		return nil, err
	}
	all, err := s.tokensOf(r.Context(), user)
	if err != nil {
		return nil, err
	}
	if len(all) >= maxTokens {
		return nil, refusal.Forbidden(fmt.Sprintf("you have reached the limit of %d tokens; revoke one", len(all)))
	}
	current, err := s.Keyring.Current(r.Context())
	if err != nil {
		return nil, refusal.Unavailable("the hub cannot create a token at the moment; try again").Because(err)
	}
	now := s.Now().UTC().Truncate(time.Second)
	made, raw, err := Generate(current.Sealing[0], now)
	if err != nil {
		return nil, err
	}
	owner := account.Claims{User: user.Name, UID: user.UID}
	secret := session.NewSecret(s.name(made.ID), owner, now, now.Add(asked.TTL.Duration))
	secret.Labels[v1.LabelSecretKind] = v1.SecretKindToken
	secret.Data[keyHash] = made.Hash()
	for key, value := range map[string]string{keyDescription: asked.Description, keyCluster: asked.Cluster} {
		if value != "" {
			secret.Data[key] = []byte(value)
		}
	}
	if err := s.Client.Create(r.Context(), secret); err != nil {
		return nil, refusal.Unavailable("the hub cannot store a token at the moment; try again").Because(err)
	}
	s.awaitSeen(r.Context(), secret)
	kept, _ := s.read(secret)
	info := kept.info()
	info.Token = raw
	return info, nil
}

// awaitSeen waits until a new token is in the cache. The token is then counted when the user creates another one. If
// the token does not appear in time, awaitSeen returns without an error.
func (s *Server) awaitSeen(ctx context.Context, secret *corev1.Secret) {
	_ = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, accesstoken.Seen, true,
		func(ctx context.Context) (bool, error) {
			return s.Client.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}) == nil, nil
		})
}

func (s *Server) readRequest(w http.ResponseWriter, r *http.Request) (Request, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return Request{}, refusal.BadRequest("the request has no body of type application/json")
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, oauth.MaxForm))
	if err != nil {
		return Request{}, refusal.BadRequest(fmt.Sprintf("the body could not be read, or is longer than %d bytes",
			oauth.MaxForm))
	}
	return s.parseRequest(raw)
}

func (s *Server) parseRequest(raw []byte) (Request, error) {
	asked := Request{TTL: metav1.Duration{Duration: min(defaultTTL, s.MaxTTL)}}
	if err := untrusted.StrictJSON(raw, &asked, untrusted.Small()); err != nil {
		return Request{}, refusal.BadRequest("the body is not of the form {\"description\": …, \"cluster\": …, \"ttl\": …}")
	}
	switch {
	case len(asked.Description) > maxDescription || !utf8.ValidString(asked.Description) ||
		strings.ContainsFunc(asked.Description, func(c rune) bool { return !unicode.IsPrint(c) }):
		return Request{}, refusal.BadRequest(fmt.Sprintf(
			"description has more than %d bytes, or characters that cannot be printed", maxDescription))
	case asked.Cluster != "" && !oauth.IsCluster(asked.Cluster):
		return Request{}, refusal.BadRequest("cluster is not of the form <namespace>/<name>")
	case asked.TTL.Duration < minTTL || asked.TTL.Duration > s.MaxTTL:
		return Request{}, refusal.BadRequest(fmt.Sprintf("ttl must be %s to %s", minTTL, s.MaxTTL))
	}
	return asked, nil
}

func (s *Server) list(_ http.ResponseWriter, r *http.Request, user *v1.User) (any, error) {
	all, err := s.tokensOf(r.Context(), user)
	if err != nil {
		return nil, err
	}
	list := List{Items: make([]Info, 0, len(all))}
	for _, t := range all {
		list.Items = append(list.Items, t.info())
	}
	return list, nil
}

// tokensOf returns a user's tokens, oldest first. It omits tokens that belong to an earlier user with the same name.
func (s *Server) tokensOf(ctx context.Context, user *v1.User) ([]stored, error) {
	var secrets corev1.SecretList
	err := s.Client.List(ctx, &secrets, client.InNamespace(s.Namespace),
		client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindToken, session.LabelUser: user.Name})
	if err != nil {
		return nil, refusal.Unavailable("the hub cannot list tokens at the moment; try again").Because(err)
	}
	var all []stored
	for i := range secrets.Items {
		if t, ok := s.read(&secrets.Items[i]); ok && t.uid == string(user.UID) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b stored) int { return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id)) })
	return all, nil
}

func (s *Server) revoke(_ http.ResponseWriter, r *http.Request, user *v1.User) (any, error) {
	none := refusal.New(http.StatusNotFound, metav1.StatusReasonNotFound, "you have no token with that ID")
	id := r.PathValue("id")
	if !IsID(id) {
		return nil, none
	}
	secret, name := &corev1.Secret{}, s.name(id)
	err := s.Client.Get(r.Context(), name, secret)
	if apierrors.IsNotFound(err) { // another replica may have just created the token; the gate limits these lookups
		err = s.Live.Get(r.Context(), name, secret)
	}
	if err == nil {
		if t, ok := s.read(secret); !ok || t.user != user.Name || t.uid != string(user.UID) {
			return nil, none
		}
		err = s.Client.Delete(r.Context(), secret, client.Preconditions{UID: &secret.UID})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, none
	case err != nil:
		return nil, refusal.Unavailable("the hub cannot revoke the token at the moment; try again").Because(err)
	}
	return struct{}{}, nil
}

func (t stored) info() Info {
	info := Info{ID: t.id, Description: t.description, Cluster: t.cluster, Created: t.created, Expires: t.ends}
	if !t.used.IsZero() {
		info.LastUsed = &t.used
	}
	return info
}
