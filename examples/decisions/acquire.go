// Calls a vendor from a program that paces itself: each call asks Paceway first (docs/services/decisions.md).
//
//	go run examples/decisions/acquire.go http://127.0.0.1:8084 search 8
//
// asks for 8 permits of the limiter `search`, one after the other, and makes a pretend call for each. Only the standard
// library is needed. PACEWAY_TOKEN has the token, if the service has one.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

type paceway struct {
	url   string
	token string
}

type decision struct {
	Limited      bool    `json:"limited"`
	RetryAfterMs float64 `json:"retry_after_ms"`
	WaitedMs     float64 `json:"waited_ms"`
	Reservation  string  `json:"reservation"`
}

func (p paceway) call(name string, body, answer any, timeout time.Duration) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, p.url+"/v1/"+name, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if p.token != "" {
		request.Header.Set("Paceway-Token", p.token)
	}
	client := http.Client{Timeout: timeout}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return json.Unmarshal(text, answer)
}

// acquire waits for a permit. The time-out is above the longest wait, so that the decision always comes.
func (p paceway) acquire(limiter string, maxWait time.Duration) (decision, error) {
	var answer decision
	body := map[string]any{
		"limiters":    []map[string]any{{"limiter": limiter}},
		"wait":        true,
		"max_wait_ms": maxWait.Milliseconds(),
	}
	err := p.call("acquire", body, &answer, maxWait+10*time.Second)
	return answer, err
}

func (p paceway) refund(reservation string) error {
	var answer struct{ Refunded bool }
	return p.call("refund", map[string]any{"reservation": reservation}, &answer, 10*time.Second)
}

func callVendor(number int) (string, error) {
	return fmt.Sprintf("answer %d", number), nil
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: acquire.go URL LIMITER COUNT")
	}
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	service := paceway{os.Args[1], os.Getenv("PACEWAY_TOKEN")}
	for number := range make([]struct{}, count) {
		decided, err := service.acquire(os.Args[2], 2*time.Second)
		if err != nil {
			log.Fatal(err)
		}
		if decided.Limited {
			fmt.Printf("refused; come back in %.0f ms\n", decided.RetryAfterMs)
			continue
		}
		answer, err := callVendor(number)
		if err != nil {
			// Nothing was sent, so that another call may have the permit.
			if err := service.refund(decided.Reservation); err != nil {
				log.Print(err)
			}
			log.Fatal(err)
		}
		fmt.Printf("%s, after %.0f ms\n", answer, decided.WaitedMs)
	}
}
