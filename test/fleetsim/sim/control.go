// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

// Paths of a sim's control socket.
const (
	pathState = "/state"
	pathCut   = "/cut"
	pathRates = "/rates"
)

// maxRate is the maximum of the Rates: ten times per second for each member.
const maxRate = 600

// Handler lets another process observe and control the fleet: GET /state, POST /cut?spare=N, POST
// /rates?churn=R&changes=R.
func (s *Sim) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathState, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(s.State())
	})
	mux.HandleFunc("POST "+pathCut, func(w http.ResponseWriter, r *http.Request) {
		spare, err := strconv.Atoi(r.URL.Query().Get("spare"))
		if err != nil || spare < 0 {
			http.Error(w, "spare: give a number, 0 to spare none", http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(s.Cut(spare))
	})
	mux.HandleFunc("POST "+pathRates, func(w http.ResponseWriter, r *http.Request) {
		var rates Rates
		for name, rate := range map[string]*float64{"churn": &rates.Churn, "changes": &rates.Changes} {
			var err error
			if *rate, err = strconv.ParseFloat(r.URL.Query().Get(name), 64); err != nil || !(*rate >= 0 && *rate <= maxRate) {
				http.Error(w, fmt.Sprintf("%s: give a share a minute, from 0 to %d", name, maxRate), http.StatusBadRequest)
				return
			}
		}
		s.Set(rates)
		_ = json.NewEncoder(w).Encode(rates)
	})
	return mux
}

// Client is a client of a sim in another process.
type Client struct {
	http http.Client
}

// NewClient returns a client of the sim that listens on a Unix socket.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{http: http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// State returns the fleet's state.
func (c *Client) State(ctx context.Context) (State, error) {
	var state State
	return state, c.do(ctx, http.MethodGet, pathState, &state)
}

// Cut calls Sim.Cut.
func (c *Client) Cut(ctx context.Context, spare int) (int, error) {
	n := 0
	return n, c.do(ctx, http.MethodPost, pathCut+"?spare="+strconv.Itoa(spare), &n)
}

// Set calls Sim.Set.
func (c *Client) Set(ctx context.Context, r Rates) error {
	path := fmt.Sprintf("%s?churn=%g&changes=%g", pathRates, r.Churn, r.Changes)
	return c.do(ctx, http.MethodPost, path, &Rates{})
}

func (c *Client) do(ctx context.Context, method, path string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://sim"+path, nil)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("ask the fleet simulator: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the fleet simulator for %s: it answers %s", path, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("ask the fleet simulator for %s: %w", path, err)
	}
	return nil
}
