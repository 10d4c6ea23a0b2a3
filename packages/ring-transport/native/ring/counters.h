// Counters of a connection and of a poller. Each is written by one thread and may be read by any; the names
// are for JavaScript, in the order of the members.
#pragma once

#include "base/counter.h"

namespace rdmakit::ring {

// Work requests of one thread.
struct PostCounters {
  Counter doorbells;  // posts, of one chain each
  Counter work_requests;
  Counter inline_requests;
  Counter signaled_requests;
};

// By the polling thread.
struct ReceiveCounters {
  Counter frames;
  Counter bytes;  // of payload
  Counter notifications;
  Counter credits;  // and pongs
  Counter pings;
  Counter credits_sent;  // and pongs
  PostCounters posts;    // of those
};

// By the sending thread.
struct SendCounters {
  PostCounters posts;
  Counter notifications;
  Counter stalls;  // of reserve and flush: no room, no credit, or no place in the send queue
};

inline constexpr const char* kConnectionCounters[] = {
    "frames_received",
    "bytes_received",
    "notifications_received",
    "credits_received",
    "credits_sent",
    "pings_received",
    "doorbells",
    "work_requests",
    "inline_requests",
    "signaled_requests",
    "notifications_sent",
    "stalls",
    "reads",
};

struct PollerCounters {
  Counter turns;
  Counter empty_turns;  // that found nothing to do
  Counter sleeps;
  Counter wakes;  // of those, by the application
  Counter completions;
  Counter doorbells;   // rung for the application
  Counter board_full;  // turns that found no place for a frame on the event ring
  Counter take_overs;  // by the guardian, as the application computed
};

inline constexpr const char* kPollerCounters[] = {
    "turns", "empty_turns", "sleeps", "wakes", "completions", "doorbells", "board_full", "take_overs",
};

}  // namespace rdmakit::ring
