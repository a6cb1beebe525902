// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/upstream"
)

// Keys of the Secret of a session whose user comes from an AuthProvider.
const (
	keyPrincipal   = "principal"
	keyProvider    = "provider"
	keyProviderUID = "providerUID"
	// keyGroups has the groups that bindings name, and keyState what the provider is asked again with.
	keyGroups = "groups"
	keyState  = "state"
	// keyNotice has what the user should know of the login.
	keyNotice = "notice"
)

const (
	// maxGroups bounds the groups of a token, in bytes. Those for which there is no room are left out, and not the user refused: who may write bindings in one
	// workspace could keep users of others from signing in, by naming many of their groups.
	maxGroups = 6 << 10
	// maxUpstreamID bounds the ID of a user.
	maxUpstreamID = 255
	// maxUpstreamState bounds what a provider is asked again with.
	maxUpstreamState = 4 << 10
	// againLimit bounds how long a refresh waits for the provider.
	againLimit = 6 * time.Second
)

// who is a user who has signed in, as a code holds them.
type who struct {
	// User and UID are those of a local User, or the name and the ID at a provider.
	User string    `json:"u"`
	UID  types.UID `json:"d"`
	// Password is the digest of the hash of the password that a local User has signed in with.
	Password string `json:"p,omitempty"`
	// The rest is of users of a provider. Groups are the principals that bindings name.
	Provider    string    `json:"v,omitempty"`
	ProviderUID types.UID `json:"w,omitempty"`
	Groups      []string  `json:"g,omitempty"`
	State       []byte    `json:"x,omitempty"`
	// Notice is shown to the user.
	Notice string `json:"m,omitempty"`
}

func (w who) principal() string {
	if w.Provider == "" {
		return v1.PrincipalPrefixLocal + w.User
	}
	return w.Provider + ":" + w.User
}

// session is the Secret of a session of the user, which began when they signed in. It goes with its User or with its AuthProvider.
func (w who) session(name types.NamespacedName, begun, ends time.Time) *corev1.Secret {
	kind, owner, uid, label := "User", w.User, w.UID, w.User
	data := map[string][]byte{keyUID: []byte(w.UID), keyBegun: []byte(begun.UTC().Format(time.RFC3339)), keyEnds: []byte(ends.UTC().Format(time.RFC3339))}
	if w.Provider != "" {
		kind, owner, uid = "AuthProvider", w.Provider, w.ProviderUID
		sum := sha256.Sum256([]byte(w.principal())) // a label can't hold the name
		label = "sha256-" + hex.EncodeToString(sum[:16])
		data[keyPrincipal], data[keyProvider], data[keyProviderUID] = []byte(w.principal()), []byte(w.Provider), []byte(w.ProviderUID)
		data[keyGroups], data[keyState], data[keyNotice] = encode(w.Groups), w.State, []byte(w.Notice)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name,
			Labels:          map[string]string{v1.LabelSecretKind: v1.SecretKindSession, v1.LabelManagedBy: v1.ManagedBy, labelUser: label},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: kind, Name: owner, UID: uid}},
		},
		Type: corev1.SecretTypeOpaque,
		Data: data,
	}
}

func encode(groups []string) []byte {
	raw, err := json.Marshal(groups)
	if err != nil { // a list of names always marshals
		return nil
	}
	return raw
}

// principalOf returns the user of a session.
func principalOf(session *corev1.Secret) string {
	if name := session.Data[keyPrincipal]; len(name) > 0 {
		return string(name)
	}
	return v1.PrincipalPrefixLocal + session.Labels[labelUser]
}

// whoOf returns the user of a session whose user comes from an AuthProvider.
func whoOf(session *corev1.Secret) who {
	provider := string(session.Data[keyProvider])
	return who{User: strings.TrimPrefix(principalOf(session), provider+":"), UID: types.UID(session.Data[keyUID]), Provider: provider, ProviderUID: types.UID(session.Data[keyProviderUID])}
}

// groupsOf returns the groups of a session that go into its tokens.
func groupsOf(session *corev1.Secret) ([]string, error) {
	var groups []string
	if raw := session.Data[keyGroups]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &groups); err != nil {
			return nil, fmt.Errorf("read the groups of session %s: they are malformed", session.Name)
		}
	}
	return groups, nil
}

// stands returns errStanding if a user who has signed in may no longer.
func (s *Server) stands(ctx context.Context, from client.Reader, w who) error {
	if w.Provider == "" {
		_, err := s.standing(ctx, from, w.User, string(w.UID))
		return err
	}
	p, err := s.provider(ctx, from, w.Provider)
	if err != nil {
		return err
	}
	if p.UID != w.ProviderUID {
		return errStanding
	}
	return s.notSwitchedOff(ctx, w.principal())
}

// provider returns an AuthProvider that is there and not disabled, or errStanding.
func (s *Server) provider(ctx context.Context, from client.Reader, name string) (*v1.AuthProvider, error) {
	p := &v1.AuthProvider{}
	if upstream.Reserved(name) {
		return nil, errStanding
	}
	if err := from.Get(ctx, types.NamespacedName{Name: name}, p); apierrors.IsNotFound(err) {
		return nil, errStanding
	} else if err != nil {
		return nil, fmt.Errorf("read AuthProvider %s: %w", name, err)
	}
	if p.Spec.Disabled || !p.DeletionTimestamp.IsZero() {
		return nil, errStanding
	}
	return p, nil
}

// notSwitchedOff returns errStanding if a User refuses a principal.
func (s *Server) notSwitchedOff(ctx context.Context, principal string) error {
	off, err := s.providers.disabled(ctx, principal)
	if err == nil && off {
		return errStanding
	}
	return err
}

// identified makes a user of what a provider says.
func (s *Server) identified(p *v1.AuthProvider, u connector.User) (who, error) {
	if _, err := upstream.Principal(p.Name, u.Name); err != nil {
		return who{}, fmt.Errorf("%w: %w", connector.ErrRefused, err)
	}
	if u.ID == "" || len(u.ID) > maxUpstreamID || len(u.State) > maxUpstreamState {
		return who{}, errors.New("the provider's ID of the user is empty or too long, or what it is asked again with is")
	}
	groups, err := s.providers.named(upstream.Groups(p.Name, u.Groups))
	if err != nil {
		return who{}, err
	}
	found := who{User: u.Name, UID: types.UID(u.ID), Provider: p.Name, ProviderUID: p.UID, Groups: fitting(groups), State: u.State, Notice: u.Notice}
	if u.Notice != "" {
		s.log.Info("a provider did not name all groups of a user", "user", found.principal(), "notice", u.Notice)
	}
	if left := len(groups) - len(found.Groups); left > 0 {
		s.log.Info("bindings name more groups of a user than a token has room for", "user", found.principal(), "groups", len(groups), "leftOut", left)
	}
	return found, nil
}

// fitting returns those groups that a token has room for, sorted. The first ones have precedence.
func fitting(groups []string) []string {
	var fit []string
	size := len("[]")
	for _, group := range groups {
		if more := len(encode([]string{group})) - len("[]") + len(","); size+more <= maxGroups {
			size += more
			fit = append(fit, group)
		}
	}
	slices.Sort(fit)
	return fit
}

// askProvider asks the provider of a session again, and puts what it says into the session. A user whom the provider refuses, or has under another name or ID, has
// to sign in again.
func (s *Server) askProvider(ctx context.Context, session *corev1.Secret) error {
	name := string(session.Data[keyProvider])
	p, err := s.provider(ctx, s.live, name)
	if err != nil {
		return err
	}
	if string(p.UID) != string(session.Data[keyProviderUID]) {
		return errStanding
	}
	if err := s.notSwitchedOff(ctx, principalOf(session)); err != nil {
		return err
	}
	upstream, err := s.providers.connectors.Of(ctx, p)
	if err != nil {
		return err
	}
	if err := s.claim(ctx, session); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, againLimit)
	defer cancel()
	u, err := upstream.Refresh(within, connector.User{ID: string(session.Data[keyUID]), Name: whoOf(session).User, State: session.Data[keyState]})
	if errors.Is(err, connector.ErrRefused) {
		s.log.Info("a provider no longer lets a user in", "user", principalOf(session), "reason", err.Error())
		return errStanding
	} else if err != nil {
		s.unclaim(ctx, session)
		return fmt.Errorf("ask provider %s: %w", name, err)
	}
	w, err := s.identified(p, u)
	if errors.Is(err, connector.ErrRefused) {
		return errStanding
	} else if err != nil {
		if len(u.State) <= maxUpstreamState {
			session.Data[keyState] = u.State // or it is lost, if the provider gave another
		}
		s.unclaim(ctx, session)
		return err
	}
	delete(session.Data, keyAsking)
	if w.principal() != principalOf(session) || string(w.UID) != string(session.Data[keyUID]) {
		return errStanding
	}
	session.Data[keyGroups], session.Data[keyState], session.Data[keyNotice] = encode(w.Groups), w.State, []byte(w.Notice)
	return nil
}
