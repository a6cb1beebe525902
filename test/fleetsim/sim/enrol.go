// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/identity"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
)

// Member is a Cluster or Host on the hub, with the key of its agent.
type Member struct {
	// Cluster is the hub's member name.
	Cluster protocol.ClusterRef
	// ClusterUID is the UID of the member's kube-system namespace.
	ClusterUID string
	Key        ed25519.PrivateKey
	// Audience is the audience of the member's connect tokens.
	Audience string
	// SettingsDigest is the digest of the settings that the agent received when it joined.
	SettingsDigest string
}

// Enrolment creates Clusters on a hub, and members for them.
type Enrolment struct {
	// Hub is a client with the rights of the hub's administrator.
	Hub client.Client
	// Server is the hub's base URL, and Bundle is its CA bundle as PEM.
	Server string
	Bundle []byte
	// Clusters is the number of Clusters to create, and Workspaces is the number of namespaces that contain them.
	Clusters, Workspaces int
	// Hosts creates Hosts instead of Clusters.
	Hosts bool
	// Join makes each agent join with the token of its Cluster, which requires a running manager. Otherwise, the agents'
	// Secrets are written in the same way as by the manager, which is faster.
	Join bool
}

// parallel is the number of concurrent requests.
const parallel = 32

// Do creates the objects that do not exist yet. Members that have joined before cannot join again. Unless Join is set,
// their identity is replaced.
func (e Enrolment) Do(ctx context.Context) ([]Member, error) {
	if e.Clusters < 1 || e.Workspaces < 1 {
		return nil, errors.New("enrol members: there must be at least one cluster and one workspace")
	}
	for i := range e.Workspaces {
		namespace := &corev1.Namespace{}
		namespace.Name = workspace(i)
		if err := e.Hub.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create workspace: %w", err)
		}
	}
	system := &corev1.Namespace{}
	if err := e.Hub.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, system); err != nil {
		return nil, fmt.Errorf("identify the hub: %w", err)
	}
	audience := trust.Identity(string(system.UID)) // of a hub that was not restored from a backup
	settings := protocol.Settings{Servers: []string{e.Server}, CABundle: string(e.Bundle)}.Digest()
	members := make([]Member, e.Clusters)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range members {
		group.Go(func() error {
			name := ClusterName(i, e.Workspaces)
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				return fmt.Errorf("enrol member %s: %w", name, err)
			}
			members[i] = Member{ClusterUID: string(uuid.NewUUID()), Key: key, Audience: audience, SettingsDigest: settings}
			if err := e.one(ctx, name, &members[i]); err != nil {
				return fmt.Errorf("enrol member %s: %w", name, err)
			}
			return nil
		})
	}
	return members, group.Wait()
}

// ClusterName returns the name of the i-th Cluster.
func ClusterName(i, workspaces int) types.NamespacedName {
	return types.NamespacedName{Namespace: workspace(i % workspaces), Name: fmt.Sprintf("member-%05d", i)}
}

func workspace(i int) string { return fmt.Sprintf("fleet-%02d", i) }

// one creates one Cluster or Host, and sets the identity of its member.
func (e Enrolment) one(ctx context.Context, name types.NamespacedName, m *Member) error {
	var owner client.Object = &v1.Cluster{}
	member := name
	if e.Hosts {
		owner, member.Name = &v1.Host{}, protocol.HostMember(name.Name)
	}
	owner.SetNamespace(name.Namespace)
	owner.SetName(name.Name)
	if err := e.Hub.Create(ctx, owner); apierrors.IsAlreadyExists(err) {
		err = e.Hub.Get(ctx, name, owner)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	m.Cluster = protocol.ClusterRef{Namespace: member.Namespace, Name: member.Name, UID: string(owner.GetUID())}
	if e.Join {
		return e.join(ctx, member, m)
	}
	return e.write(ctx, owner, m)
}

// write stores the member's key as the key of the Cluster's agent, without a join.
func (e Enrolment) write(ctx context.Context, owner client.Object, m *Member) error {
	public, ok := m.Key.Public().(ed25519.PublicKey)
	if !ok {
		return errors.New("the key is not Ed25519")
	}
	secret := &corev1.Secret{}
	registration.WriteIdentity(secret, owner, registration.AgentIdentity{
		PublicKey: public, ClusterUID: m.ClusterUID, OwnerUID: owner.GetUID(), Joined: time.Now(),
	})
	err := e.Hub.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		return e.Hub.Update(ctx, secret)
	}
	return err
}

// join sends the token of the Cluster to the hub, like an agent that has just been installed.
func (e Enrolment) join(ctx context.Context, name types.NamespacedName, m *Member) error {
	token, err := e.token(ctx, name)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(e.Bundle)
	endpoint := identity.Endpoint{Servers: []string{e.Server}, Roots: roots}
	answer, err := identity.Join(ctx, endpoint, identity.JoinInput{Token: token, Key: m.Key, ClusterUID: m.ClusterUID})
	if err != nil {
		return err
	}
	m.Cluster, m.Audience, m.SettingsDigest = answer.Cluster, answer.Audience, answer.Settings.Digest()
	return nil
}

// token waits for the join token that the manager creates.
func (e Enrolment) token(ctx context.Context, name types.NamespacedName) (string, error) {
	const patience, pause = time.Minute, 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		secret := &corev1.Secret{}
		err := e.Hub.Get(ctx, registration.RegistrationSecret(name), secret)
		if err == nil {
			return string(secret.Data[registration.KeyToken]), nil
		}
		if !apierrors.IsNotFound(err) || !wait(ctx, pause) {
			return "", fmt.Errorf("read join token: %w; is the manager running?", err)
		}
	}
}
