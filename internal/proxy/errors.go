// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity/refusal"
)

// patience is how long clients are asked to retry after a member has been disconnected. An agent or manager that
// restarts is available again within this time. After that, kubectl shows the problem immediately.
const patience = time.Minute

// discoveryPatience replaces patience for the two paths that clients request first. If its cache is empty, kubectl
// requests these paths five times, and repeats each request up to ten times if the response asks it to retry. With the
// longer patience, kubectl would not print the problem until 50 s had passed.
const discoveryPatience = 10 * time.Second

// memberError returns a Status that explains why a member does not respond to a request.
func memberError(c *call, err error) error {
	cluster, path := c.target.cluster, c.info.Path
	var (
		refused      *refusal.Error
		disconnected *NotConnectedError
	)
	switch {
	case errors.As(err, &refused), errors.Is(err, context.Canceled), errors.Is(err, errNoIdentity):
		return err
	case errors.Is(err, ErrUnknownCluster):
		return refusal.New(http.StatusNotFound, metav1.StatusReasonNotFound,
			fmt.Sprintf("cluster %q not found; to list the clusters, run kubectl get clusters -n %s on the hub",
				cluster, cluster.Namespace)).About(cluster)
	case errors.As(err, &disconnected):
		return notConnected(cluster, path, disconnected.LastSeen, time.Now()).Because(err)
	case errors.Is(err, ErrHeaderTooLarge):
		return refusal.New(http.StatusRequestHeaderFieldsTooLarge, refusal.ReasonHeaderTooLarge, fmt.Sprintf(
			"user %q is in %d groups: with a header for each of them, "+
				"the request is larger than the agent of cluster %q accepts; "+
				"put the user in fewer groups", c.identity.User, len(c.identity.Groups), cluster)).About(cluster)
	case isTimeout(err):
		return refusal.New(http.StatusGatewayTimeout, refusal.ReasonGatewayTimeout,
			fmt.Sprintf("cluster %q did not answer in time; try again", cluster)).Because(err).About(cluster)
	}
	return refusal.New(http.StatusBadGateway, refusal.ReasonBadGateway,
		fmt.Sprintf("the connection to cluster %q broke before it answered; "+
			"the request may have been carried out, so check before you try again",
			cluster)).
		Because(err).About(cluster)
}

// notConnected returns an error that says how long a member has been disconnected and where to find details.
func notConnected(cluster types.NamespacedName, path string, lastSeen, now time.Time) *refusal.Error {
	seen := "the time when it was last seen is not known"
	if !lastSeen.IsZero() {
		seen = fmt.Sprintf("last seen %s, %s ago", lastSeen.UTC().Format(time.RFC3339), now.Sub(lastSeen).Round(time.Second))
	}
	e := refusal.Unavailable(fmt.Sprintf("cluster %q is not connected to the hub: %s; "+
		"for the reason, run kubectl describe cluster %s -n %s on the hub",
		cluster, seen, cluster.Name, cluster.Namespace)).About(cluster)
	awaited := lastSeen.IsZero() || now.Sub(lastSeen) <= patience
	if isDiscovery(path) {
		awaited = !lastSeen.IsZero() && now.Sub(lastSeen) <= discoveryPatience
	}
	if !awaited {
		return e.RetryAt(now.Add(patience))
	}
	return e
}

// hubError returns a Status that explains why the hub's own API server does not respond.
func hubError(err error) error {
	var refused *refusal.Error
	switch {
	case errors.As(err, &refused), errors.Is(err, context.Canceled), errors.Is(err, errNoIdentity):
		return err
	case isTimeout(err):
		return refusal.New(http.StatusGatewayTimeout, refusal.ReasonGatewayTimeout,
			"the hub's API server did not answer in time; try again").Because(err)
	}
	return refusal.New(http.StatusBadGateway, refusal.ReasonBadGateway,
		"the connection to the hub's API server broke before it answered; "+
			"the request may have been carried out, so check before you try again").Because(err)
}
