// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/await"
)

// +kubebuilder:rbac:groups=discovery.k8s.io,namespace=drover-system,resources=endpointslices,verbs=get;list;watch

// portName is the name of the replicas' port in their Service.
const portName = "peers"

// Finder finds the replicas until ctx is done. It calls found with the addresses (host:port) of all replicas initially,
// and whenever they change.
type Finder func(ctx context.Context, found func(addresses []string)) error

// Static returns a Finder for replicas whose addresses never change.
func Static(addresses []string) Finder {
	return func(ctx context.Context, found func([]string)) error {
		found(addresses)
		<-ctx.Done()
		return nil
	}
}

// Endpoints returns a Finder for the replicas behind a headless Service. The cache must contain its EndpointSlices.
func Endpoints(endpoints cache.Cache, namespace, service string) Finder {
	return func(ctx context.Context, found func([]string)) error {
		informer, err := endpoints.GetInformer(ctx, &discoveryv1.EndpointSlice{})
		if err != nil {
			return fmt.Errorf("watch endpoints of service %s: %w", service, err)
		}
		changed := make(chan struct{}, 1)
		wake := func() { await.Signal(changed) }
		registered, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { wake() }, UpdateFunc: func(_, _ any) { wake() }, DeleteFunc: func(any) { wake() },
		})
		if err != nil {
			return fmt.Errorf("watch endpoints of service %s: %w", service, err)
		}
		defer func() { _ = informer.RemoveEventHandler(registered) }() // fails only if the informer has stopped
		if !toolscache.WaitForCacheSync(ctx.Done(), registered.HasSynced) {
			return nil
		}
		for wake(); ; {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
			var list discoveryv1.EndpointSliceList
			service := client.MatchingLabels{discoveryv1.LabelServiceName: service}
			if err := endpoints.List(ctx, &list, client.InNamespace(namespace), service); err != nil {
				return fmt.Errorf("list endpoints of service %s: %w", service, err)
			}
			found(addresses(list.Items))
		}
	}
}

// addresses returns one address for each replica in the EndpointSlices of the replicas' Service, preferring IPv4. It
// includes replicas that are not ready, because a replica that is stopping still has tunnels.
func addresses(endpointSlices []discoveryv1.EndpointSlice) []string {
	byReplica := map[string]string{}
	slices.SortFunc(endpointSlices, func(a, b discoveryv1.EndpointSlice) int { // IPv6 first, so that IPv4 replaces it
		return strings.Compare(string(b.AddressType), string(a.AddressType))
	})
	for _, slice := range endpointSlices {
		port := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Name != nil && *p.Name == portName && p.Port != nil
		})
		if port < 0 || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			address := net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*slice.Ports[port].Port)))
			replica := address
			if e.TargetRef != nil {
				replica = string(e.TargetRef.UID) + "/" + e.TargetRef.Name
			}
			byReplica[replica] = address
		}
	}
	return slices.Sorted(maps.Values(byReplica))
}
