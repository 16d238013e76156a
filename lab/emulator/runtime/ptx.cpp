// Inline PTX: the instructions that kernels use where CUDA C++ has no function. A text is taken
// apart once: statements, and what each names. Others need a GPU, and the fault says which.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "barriers.h"
#include "copies.h"
#include "faults.h"
#include "lanes.h"
#include "order.h"
#include "registers.h"
#include "watch.h"

namespace emulator {

namespace {

struct Word {        // %0, %[name], 16, %laneid
  std::string text;  // without its first %
  bool is_operand = false;
  int index = -1;      // of the operand, where it has no name
  int64_t offset = 0;  // [%0 + 16]
};
using Words = std::vector<Word>;  // {%0, %1} or only one
struct Running;
struct Statement {
  std::string opcode;
  std::vector<Words> parts;
  mutable bool (*run)(const Running&) = nullptr;  // what did it last time
};

bool starts_with(const std::string& text, const char* prefix) {
  return text.compare(0, strlen(prefix), prefix) == 0;
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

Word word_of(std::string text) {
  Word word;
  const size_t plus = text.find('+');
  if (plus != std::string::npos) {
    word.offset = strtoll(text.c_str() + plus + 1, nullptr, 0);
    text.resize(plus);
  }
  word.is_operand = text.size() > 1 && text[0] == '%' && text[1] != '%';
  const size_t percents = text.find_first_not_of('%');
  word.text = percents == std::string::npos ? "" : text.substr(percents);
  if (word.text.size() > 2 && word.text[0] == '[')  // %[name]
    word.text = word.text.substr(1, word.text.size() - 2);
  if (word.is_operand && isdigit(word.text[0])) word.index = atoi(word.text.c_str());
  return word;
}

// "{%0, %1}" to its words; brackets around an address say no more than the opcode does.
Words words_of(const std::string& text) {
  Words words;
  std::string word;
  for (const char c : text + ",") {
    if (c == ',') {
      if (!word.empty()) words.push_back(word_of(word));
      word.clear();
    } else if (!strchr(" \t\n{}", c)) {
      word += c;
    }
  }
  return words;
}

std::string without_brackets(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos || text[first] != '[') return text;
  return text.substr(first + 1, text.rfind(']') - first - 1);
}

Statement statement_of(const std::string& text) {
  Statement statement;
  size_t at = text.find_first_of(" \t\n");
  if (at == std::string::npos) at = text.size();
  statement.opcode = text.substr(0, at);
  int depth = 0;
  std::string part;
  for (const char c : text.substr(at) + ",") {
    if (c == ',' && depth == 0) {
      const Words words = words_of(without_brackets(part));
      if (!words.empty()) statement.parts.push_back(words);
      part.clear();
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    part += c;
  }
  return statement;
}

const std::vector<Statement>& program_of(const char* text) {
  static std::unordered_map<const char*, std::vector<Statement>> programs;
  const auto found = programs.find(text);
  if (found != programs.end()) return found->second;
  std::vector<Statement>& program = programs[text];
  std::string statement;
  for (const char c : std::string(text) + ";") {
    if (c != ';') {
      statement += c;
      continue;
    }
    const size_t first = statement.find_first_not_of(" \t\n{}");
    if (first != std::string::npos) program.push_back(statement_of(statement.substr(first)));
    statement.clear();
  }
  return program;
}

// ---- A statement as it runs.

struct Running {
  const Statement& statement;
  const Operand* operands;
  int count;
  const void* pc;

  const Operand* operand(const Word& word) const {
    if (!word.is_operand) return nullptr;
    if (word.index >= 0) return word.index < count ? &operands[word.index] : nullptr;
    for (int i = 0; i < count; ++i) {
      if (operands[i].name && word.text == operands[i].name) return &operands[i];
    }
    return nullptr;
  }
  uint64_t value(const Word& word) const {
    const Operand* found = operand(word);
    uint64_t bits = found ? 0 : strtoull(word.text.c_str(), nullptr, 0);
    if (found) memcpy(&bits, found->value, std::min<size_t>(found->bytes, 8));
    return bits;
  }
  uint64_t value(unsigned part) const {
    return part < statement.parts.size() ? value(statement.parts[part][0]) : 0;
  }
  float number(unsigned part) const {
    const auto bits = static_cast<uint32_t>(value(part));
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
  }
  void set(const Word& word, uint64_t bits) const {
    if (const Operand* found = operand(word))
      memcpy(found->value, &bits, std::min<size_t>(found->bytes, 8));
  }
  void set(uint64_t bits) const { set(statement.parts[0][0], bits); }
  void set_number(float x) const {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    set(bits);
  }
  uintptr_t address(unsigned part) const {
    const Word& word = statement.parts[part][0];
    const uint64_t bits = value(word) + word.offset;
    const Operand* found = operand(word);
    const bool is_shared = found && found->bytes == 4;
    return is_shared ? uintptr_t(emulator_shared_pointer(uint32_t(bits))) : bits;
  }
};

unsigned lop3(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
  uint32_t result = 0;
  for (unsigned i = 0; i < 8; ++i) {
    if (!(table >> i & 1)) continue;
    result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}

float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

// One number in, one out, both float32.
bool compute_float(const Running& call) {
  const std::string& name = call.statement.opcode;
  if (!has(name, "f32") || call.statement.parts.size() != 2) return false;
  const bool is_flushed = has(name, ".ftz");
  const float x = is_flushed ? flush(call.number(1)) : call.number(1);
  float y;
  if (starts_with(name, "ex2.approx"))
    y = exp2f(x);
  else if (starts_with(name, "lg2.approx"))
    y = log2f(x);
  else if (starts_with(name, "rcp."))
    y = 1 / x;
  else if (starts_with(name, "rsqrt."))
    y = 1 / sqrtf(x);
  else if (starts_with(name, "sqrt."))
    y = sqrtf(x);
  else if (starts_with(name, "tanh.approx"))
    y = tanhf(x);
  else if (starts_with(name, "sin.approx"))
    y = sinf(x);
  else if (starts_with(name, "cos.approx"))
    y = cosf(x);
  else
    return false;
  call.set_number(is_flushed ? flush(y) : y);
  return true;
}

bool compute_integer(const Running& call) {
  const std::string& name = call.statement.opcode;
  if (name == "lop3.b32") {
    call.set(lop3(call.value(1), call.value(2), call.value(3), call.value(4)));
  } else if (name == "mad.wide.u32") {
    call.set(uint64_t(uint32_t(call.value(1))) * uint32_t(call.value(2)) + call.value(3));
  } else if (name == "mad.wide.s32") {
    call.set(int64_t(int32_t(call.value(1))) * int32_t(call.value(2)) + call.value(3));
  } else if (starts_with(name, "createpolicy")) {
    call.set(0);
  } else if (starts_with(name, "mov.") && call.statement.parts.size() == 2) {
    const Word& from = call.statement.parts[1][0];
    const Thread& thread = me();
    if (from.is_operand)
      call.set(call.value(from));
    else if (from.text == "laneid")
      call.set(thread.lane);
    else if (from.text == "warpid")
      call.set(thread.warp_number());
    else if (from.text == "smid")
      call.set(0);
    else if (from.text == "nwarpid" || from.text == "nsmid")
      call.set(machine.warps);
    else if (starts_with(from.text, "clock") || from.text == "globaltimer")
      call.set(emulator_clock());
    else if (from.text == "lanemask_lt")
      call.set((1u << thread.lane) - 1);
    else if (from.text == "lanemask_eq")
      call.set(1u << thread.lane);
    else
      return false;
  } else {
    return false;
  }
  return true;
}

unsigned bytes_of_type(const std::string& opcode) {
  const size_t last = opcode.rfind('.');
  const unsigned bits = atoi(opcode.c_str() + last + 2);
  return bits / 8;
}

// ld and st, of shared and global memory, of up to four registers.
bool move(const Running& call) {
  const std::string& name = call.statement.opcode;
  const bool is_load = starts_with(name, "ld."), is_store = starts_with(name, "st.");
  const bool is_space = has(name, ".shared") || has(name, ".global") || has(name, "ld.volatile");
  if ((!is_load && !is_store) || !is_space || has(name, "async") || has(name, "cluster"))
    return false;
  const Words& registers = call.statement.parts[is_load ? 0 : 1];
  const unsigned bytes = bytes_of_type(name), all = bytes * unsigned(registers.size());
  const uintptr_t address = call.address(is_load ? 1 : 0);
  const bool is_strong =
      has(name, "volatile") || has(name, "relaxed") || has(name, "acquire") || has(name, "release");
  if (address % all) {
    Fault fault = fault_here("misaligned", call.pc);
    fault.access = is_load ? "read" : "write";
    fault.address = address;
    fault.bytes = all;
    add_fact(fault, "alignment", all);
    report_and_kill(fault);
  }
  if (has(name, "release")) on_fence(true);
  on_access({address, all, is_load ? Kind::kLoad : Kind::kStore, is_strong, 0}, call.pc);
  for (unsigned i = 0; i < registers.size(); ++i) {
    auto* at = reinterpret_cast<void*>(address + i * bytes);
    uint64_t bits = is_load ? 0 : call.value(registers[i]);
    if (is_load) {
      memcpy(&bits, at, bytes);
      call.set(registers[i], bits);
    } else {
      memcpy(at, &bits, bytes);
    }
  }
  return true;
}

bool copy(const Running& call) {
  const std::string& name = call.statement.opcode;
  if (name == "cp.async.commit_group") {
    commit_copies();
  } else if (name == "cp.async.wait_all") {
    commit_copies();
    wait_for_copies(0);
  } else if (name == "cp.async.wait_group") {
    wait_for_copies(call.value(0));
  } else if (starts_with(name, "cp.async.c")) {
    const auto bytes = static_cast<unsigned>(call.value(2));
    const unsigned taken = call.statement.parts.size() > 3 ? call.value(3) : bytes;
    start_copy(call.address(0), reinterpret_cast<void*>(call.address(1)), bytes, bytes - taken,
               call.pc);
  } else {
    return false;
  }
  return true;
}

uint64_t join(int operation, void* registers, const void* pc) {
  return join_warp({operation, ~0u, uint64_t(registers), 0, 0, 32}, pc);
}

bool multiply(const Running& call) {
  const std::string& name = call.statement.opcode;
  MatrixRegisters registers = {};
  if (name == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
    registers.type = kF16;
  else if (name == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
    registers.type = kBF16;
  else if (name == "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32")
    registers.type = kU16;
  else
    return false;
  const auto& parts = call.statement.parts;  // d, a, b, c
  for (unsigned i = 0; i < 4; ++i) registers.a[i] = call.value(parts[1][i]);
  for (unsigned i = 0; i < 2; ++i) registers.b[i] = call.value(parts[2][i]);
  for (unsigned i = 0; i < 4; ++i) {
    call.set(parts[0][i], call.value(parts[3][i]));
    registers.c[i] = call.operand(parts[0][i])->value;
  }
  join(kMatrixProduct, &registers, call.pc);
  return true;
}

bool load_matrix(const Running& call) {
  const std::string& name = call.statement.opcode;
  if (!starts_with(name, "ldmatrix.sync.aligned.") || !has(name, ".m8n8") || !has(name, ".b16"))
    return false;
  MatrixRegisters registers = {};
  registers.count = call.statement.parts[0].size();
  registers.is_transposed = has(name, ".trans");
  const uintptr_t row = call.address(1);
  if (me().lane < registers.count * 8) {
    if (row % 16) {
      Fault fault = fault_here("misaligned", call.pc);
      fault.access = "read";
      fault.address = row;
      fault.bytes = 16;
      add_fact(fault, "alignment", 16);
      report_and_kill(fault);
    }
    on_access({row, 16, Kind::kMatrix, false, 0}, call.pc);
  }
  registers.row = reinterpret_cast<const char*>(row);
  for (unsigned i = 0; i < registers.count; ++i)
    registers.c[i] = call.operand(call.statement.parts[0][i])->value;
  join(kMatrixLoad, &registers, call.pc);
  return true;
}

bool synchronize(const Running& call) {
  const std::string& name = call.statement.opcode;
  if (starts_with(name, "bar.sync") || starts_with(name, "barrier.sync") ||
      starts_with(name, "bar.cta.sync") || starts_with(name, "barrier.cta.sync")) {
    wait_at_barrier({int(call.value(0)), int(call.value(1)), 0, 0, 0}, call.pc);
  } else if (name == "bar.warp.sync") {
    join_warp({kSyncWarp, unsigned(call.value(0)), 0, 0, 0, 32}, call.pc);
  } else if (starts_with(name, "membar.") || starts_with(name, "fence.acq_rel") ||
             starts_with(name, "fence.sc")) {
    on_fence(!has(name, ".cta"));
  } else if (name == "movmatrix.sync.aligned.m8n8.trans.b16") {
    uint32_t x = call.value(1);
    join(kMatrixTranspose, &x, call.pc);
    call.set(x);
  } else {
    return false;
  }
  return true;
}

// What only helps caches, or the kernels before and after this one.
bool is_hint(const Running& call) {
  for (const char* prefix : {"prefetch", "cp.async.bulk.prefetch", "griddepcontrol", "nanosleep",
                             "applypriority", "discard"}) {
    if (starts_with(call.statement.opcode, prefix)) return true;
  }
  return false;
}

void run(const Running& call) {
  const Statement& statement = call.statement;
  if (statement.run && statement.run(call)) return;
  for (const auto try_one :
       {is_hint, compute_integer, compute_float, copy, multiply, load_matrix, move, synchronize}) {
    statement.run = try_one;
    if (try_one(call)) return;
  }
  Fault fault = fault_here("needs a GPU", call.pc);
  add_fact(fault, "text", call.statement.opcode);
  report_and_kill(fault);
}

}  // namespace
}  // namespace emulator

EMULATOR_API void emulator_ptx(const char* text, const emulator::Operand* operands, int count) {
  if (!emulator::machine.current) return;
  emulator::settle();
  const void* pc = __builtin_return_address(0);
  for (const auto& statement : emulator::program_of(text))
    emulator::run({statement, operands, count, pc});
}
