// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision/infrastructure"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// A manager that is older than the provisioner publishes no address.
func TestUnknownAddressOfTheHubIsACondition(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	key := types.NamespacedName{Namespace: env.Workspace(t), Name: "web"}
	owner := env.ClusterAPIObject(t, "Cluster", key.Namespace, key.Name, nil, map[string]any{"spec": map[string]any{
		"infrastructureRef": testkit.InfrastructureRef("DroverCluster", key.Name),
	}})
	object := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, OwnerReferences: testkit.OwnedBy(owner),
	}}
	env.Apply(t, object)
	env.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
	none := errors.Join(apierrors.NewNotFound(corev1.Resource("configmaps"), "drover-ca"))
	for name, settings := range map[string]func(context.Context) (protocol.Settings, error){
		"no ConfigMap":         func(context.Context) (protocol.Settings, error) { return protocol.Settings{}, none },
		"no address":           always(protocol.Settings{CABundle: "the CA"}),
		"neither of those two": always(protocol.Settings{Servers: []string{"https://hub.example.com"}, CABundle: "the CA"}),
	} {
		r := &infrastructure.Reconciler{Client: env.Client, Live: env.Client, Settings: settings}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(object.Status.Conditions, infrav1.ConditionReady)
		unknown := ready != nil && ready.Reason == infrav1.ReasonHubUnknown
		if unknown != (name != "neither of those two") {
			t.Errorf("%s: Ready is %+v", name, ready)
		}
	}
}
