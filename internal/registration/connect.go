// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Agent is the identity that a connect token proves.
type Agent struct {
	Cluster protocol.ClusterRef
	// KeyID is the digest of the key that verified the token.
	KeyID string
	// Instance is the name of the agent's process. It is empty if the agent sent no name.
	Instance string
	// NodeAgent reports whether the agent is a node agent.
	NodeAgent bool
	// TokenID is the ID of the connect token.
	TokenID string
}

// KeyID returns a digest of a public key. The digest serves as the ID of the key.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:16])
}

// Authenticate verifies a request's connect token. If it returns false, it has already written the response.
//
// If a client names a Cluster but cannot prove that it is the agent of that Cluster, it always receives 410, whether or
// not the Cluster exists. An agent then waits for a long time before it tries again, and checks for a new join token.
func (s *Server) Authenticate(w http.ResponseWriter, r *http.Request) (Agent, bool) {
	token, ok := bearer(r)
	if !ok {
		writeRefusal(w, http.StatusUnauthorized,
			refuse(v1.ReasonTokenInvalid, "exactly one header \"Authorization: Bearer <connect token>\" is required"))
		return Agent{}, false
	}
	agent, err := s.authenticate(r.Context(), token)
	if err != nil {
		s.answer(w, err, "authenticate agent")
		return Agent{}, false
	}
	return agent, true
}

func (s *Server) authenticate(ctx context.Context, token string) (Agent, error) {
	claimed, err := protocol.PeekConnectToken(token)
	if err != nil {
		return Agent{}, err
	}
	unproven := refuse(v1.ReasonAwaitingAgent,
		"no agent with this key has joined as the cluster that it names; if it was revoked, or the cluster was recreated, "+
			"apply the manifest of a new Secret <cluster>%s",
		v1.RegistrationSecretSuffix)
	name := types.NamespacedName{Namespace: claimed.Namespace, Name: claimed.Name}
	object, _ := ownerOf(name)
	if len(validation.IsDNS1123Label(object.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(object.Name)) > 0 {
		return Agent{}, unproven
	}
	// The cache might not contain the latest join yet. If an agent is not in the cache, the API server is queried. Such
	// queries are limited, because the client has not proved anything yet.
	id, claims, err := s.verify(ctx, s.Cache, name, token)
	if err != nil && !errors.Is(err, protocol.ErrConnectToken) {
		if !s.limits.lookup(name, s.Now()) {
			return Agent{}, errBusy
		}
		id, claims, err = s.verify(ctx, s.Live, name, token)
	}
	var refusal *RefusalError
	switch {
	case errors.Is(err, errNotProven):
		s.showUnproven(ctx, name)
		return Agent{}, unproven
	case errors.As(err, &refusal):
		s.Refused(name, refusal.Reason, refusal.Message)
		return Agent{}, refusal
	case errors.Is(err, protocol.ErrConnectToken): // signed by the agent, but not valid at this time
		s.Refused(name, v1.ReasonTokenInvalid, err.Error()+"; check the clocks of the agent's machine and of the hub")
		return Agent{}, err
	case err != nil:
		return Agent{}, err
	}
	agent := Agent{Cluster: claims.Cluster, KeyID: KeyID(id.PublicKey), Instance: claims.Instance,
		NodeAgent: claims.NodeAgent, TokenID: claims.ID}
	if err := s.replays.use(agent.KeyID, claims.ID, s.Now(),
		claims.IssuedAt.Add(protocol.ConnectTokenTTL+protocol.ClockSkew)); err != nil {
		return Agent{}, err
	}
	return agent, nil
}

// showUnproven records in a Cluster's status that a client named the Cluster without proof. Because any client can
// cause this, the record contains no data from the client. Clusters that are not in the cache are ignored, and the
// number of Clusters that are updated per second is limited.
func (s *Server) showUnproven(ctx context.Context, name types.NamespacedName) {
	if key, owner := ownerOf(name); s.Cache.Get(ctx, key, owner) != nil || !s.limits.show(s.Now()) {
		return
	}
	s.Unproven(name, v1.ReasonAwaitingAgent,
		"an agent connects with a key that is not, or is no longer, the key of this cluster's agent; "+
			"if it was revoked, or the Cluster was recreated, apply the manifest in Secret "+
			RegistrationSecret(name).Name+" in the member")
}

// errNotProven is returned when the key of the Cluster's agent does not verify a token. The key may come from the
// cache or from the API server.
var errNotProven = errors.New("not proven")

// verify returns the identity that a token proves, using the agent's key from the given reader. It returns errNotProven
// if the token was not signed with that key. It returns a RefusalError if the key is correct but the agent is refused
// for another reason. A client without proof causes exactly one read, so the response time does not disclose whether
// the Cluster exists.
func (s *Server) verify(ctx context.Context, reader client.Reader, name types.NamespacedName,
	token string) (*AgentIdentity, protocol.ConnectClaims, error) {
	var none protocol.ConnectClaims
	_, id, err := s.identity(ctx, reader, name)
	if err != nil {
		return nil, none, err
	}
	if id == nil {
		return nil, none, errNotProven
	}
	claims, err := protocol.VerifyConnectToken(token, id.PublicKey, s.Audience(), s.Now())
	if errors.Is(err, protocol.ErrSignature) {
		return nil, none, errNotProven
	} else if err != nil {
		return nil, none, err
	}
	key, owner := ownerOf(name)
	if err := reader.Get(ctx, key, owner); apierrors.IsNotFound(err) {
		return nil, none, errNotProven
	} else if err != nil {
		return nil, none, fmt.Errorf("look up %s: %w", called(name.String()), err)
	}
	if refusal := CheckConnect(claims, owner, id); refusal != nil {
		return nil, none, refusal
	}
	// an adopted agent's tokens contain the UID of the former Cluster object
	claims.Cluster.UID = string(owner.GetUID())
	return id, claims, nil
}

// TokenUsed records that an agent has used a connect token with another replica of the hub. The token is valid until
// the given time.
func (s *Server) TokenUsed(keyID, tokenID string, expires time.Time) {
	_ = s.replays.use(keyID, tokenID, s.Now(), expires) // an error means that the token is already known and refused
}

// maxConnects is the maximum number of used connect tokens that are stored for one agent. It is sufficient for about
// two minutes.
const maxConnects = 1000

// replayGuard stores the IDs of used connect tokens until the tokens expire. It accepts only verified tokens, and
// limits the number of tokens per agent, so that no client can use up the space for others. The zero value is ready to
// use.
type replayGuard struct {
	mu    sync.Mutex                      // guards the fields below
	used  map[string]map[string]time.Time // the expiry of each token, by KeyID and then by token ID
	swept time.Time
}

// use records the ID of an agent's token. The expires parameter is the time when the token expires. It returns an error
// if the ID has been used before.
func (g *replayGuard) use(agent, id string, now, expires time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sweep(now)
	used := g.used[agent]
	if _, before := used[id]; before {
		return refuse(v1.ReasonTokenInvalid, "this connect token was used before")
	}
	if len(used) >= maxConnects {
		return errBusy
	}
	if used == nil {
		used = map[string]time.Time{}
		if g.used == nil {
			g.used = map[string]map[string]time.Time{}
		}
		g.used[agent] = used
	}
	used[id] = expires
	return nil
}

// sweep removes expired tokens, at most once per ConnectTokenTTL.
func (g *replayGuard) sweep(now time.Time) {
	if now.Sub(g.swept) < protocol.ConnectTokenTTL {
		return
	}
	g.swept = now
	for agent, used := range g.used {
		for id, end := range used {
			if now.After(end) {
				delete(used, id)
			}
		}
		if len(used) == 0 {
			delete(g.used, agent)
		}
	}
}
