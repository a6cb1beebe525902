// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"crypto/ed25519"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// elsewhere refuses a join by an agent that still belongs to another Cluster. Without this check, both Clusters would
// share the objects in the member, and the first Cluster would lose its agent. The agent itself names its current
// Cluster, and proves that it belongs to this Cluster. An agent that conceals its Cluster harms only its own member.
// The error is either a *RefusalError or the error from a failed read.
func (s *Server) elsewhere(ctx context.Context, asked types.NamespacedName, token string,
	request protocol.RegisterRequest) error {
	if request.Current == nil {
		return nil
	}
	ref := request.Current.Cluster
	current := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	if current == asked || len(validation.IsDNS1123Label(ref.Namespace)) > 0 ||
		len(validation.IsDNS1123Subdomain(ref.Name)) > 0 {
		return nil
	}
	_, id, err := s.identity(ctx, s.Live, current)
	if err != nil {
		return err
	}
	if id == nil || !ed25519.Verify(id.PublicKey, protocol.ProofPayload(token, request.ClusterUID),
		request.Current.Proof) {
		return nil
	}
	cluster := &v1.Cluster{}
	switch err := s.Live.Get(ctx, current, cluster); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look up cluster %s: %w", current, err)
	case string(cluster.UID) != ref.UID && (id.OwnerUID != cluster.UID || !id.knownAs(ref.UID)) ||
		!cluster.DeletionTimestamp.IsZero():
		return nil
	}
	refusal := refuse(v1.ReasonAlreadyImported,
		"the cluster whose agent showed the join token of cluster %s is already imported as cluster %s, and can be only "+
			"one Cluster; "+
			"delete this Cluster, or, to move it, set deletionPolicy Orphan on the other one and delete that", asked, current)
	s.Refused(asked, refusal.Reason, refusal.Message)
	return refusal
}
